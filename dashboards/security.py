"""Access control: host names, log-in, origin of changes, security headers of responses."""

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOGIN_PATH = "/login"
STATIC_PREFIX = "/static/"
WRONG_TOKEN_S = 1.0
"""time that a wrong token takes"""
_SAFE = ("GET", "HEAD")
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
PICTURE_CSP = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""policy for SVG files, which have inline styles and no scripts"""
REPORT_CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; sandbox allow-scripts"
)
"""policy for a report, whose own policy lists its scripts; it runs in an origin of its own"""
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Access:
    """Host names that the dashboard accepts, and its token; without a token, anyone who can connect may use it."""

    hosts: frozenset[str]
    token: str | None = None


class Guard:
    """Middleware that checks every request."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access
        self._secret = secrets.token_bytes(32)
        self._failing = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or forward it with `request.state.is_admitted`; add headers to every response."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_admitted = self._is_admitted(scope, headers)
        has_started = False

        async def send_guarded(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                _add_headers(MutableHeaders(scope=message), scope)
            await send(message)

        error_response = self._error_response(scope, headers, is_admitted)
        scope.setdefault("state", {}).update(is_admitted=is_admitted, guard=self)
        try:
            await (error_response or self._app)(scope, receive, send_guarded)
        except Exception:
            if not has_started:  # Starlette's own response would lack the headers
                error_page = PlainTextResponse("internal error; see the output of `hacpo dashboard`", 500)
                await error_page(scope, receive, send_guarded)
            raise

    def _error_response(self, scope: Scope, headers: Headers, is_admitted: bool) -> Response | None:
        if _host_name(headers.get("host", "")) not in self._access.hosts:
            return PlainTextResponse("this host name is not allowed; add it with --allow-host", 421)
        path, method = scope["path"], scope["method"]
        # Browsers send the origin with every change, and no script can set it.
        if method not in _SAFE and not _is_own_origin(headers):
            return PlainTextResponse("refused: the request does not come from this page", 403)
        if is_admitted or path == LOGIN_PATH or path.startswith(STATIC_PREFIX):
            return None
        if "hx-request" in headers:
            return Response(status_code=401, headers={"HX-Redirect": LOGIN_PATH})
        if method in _SAFE and "text/html" in headers.get("accept", ""):
            return RedirectResponse(LOGIN_PATH, 303)
        return PlainTextResponse("log in at /login", 401)

    async def slow_down(self) -> None:
        """Wait because of a wrong token: one at a time, whoever sends it."""
        async with self._failing:
            await asyncio.sleep(WRONG_TOKEN_S)

    def is_token(self, text: str) -> bool:
        """Whether this is the token, compared in constant time."""
        token = self._access.token
        return token is not None and hmac.compare_digest(text.encode(), token.encode())

    def _is_admitted(self, scope: Scope, headers: Headers) -> bool:
        # Not http.cookies: it drops all cookies that follow one it cannot parse, such as another page's.
        cookies = cookie_parser(headers.get("cookie", ""))
        text, _, mac = cookies.get(_cookie_name(scope), "").rpartition(".")
        return self._access.token is None or hmac.compare_digest(mac.encode(), self._mac(text).encode())

    def session(self) -> str:
        """A new signed cookie, of a browser that has logged in."""
        text = secrets.token_urlsafe(18)
        return f"{text}.{self._mac(text)}"

    def _mac(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()


def _add_headers(headers: MutableHeaders, scope: Scope) -> None:
    for name, value in _HEADERS.items():
        headers[name] = value
    headers.setdefault("content-security-policy", _CSP)
    if not scope["path"].startswith(STATIC_PREFIX):
        headers.setdefault("cache-control", "no-store")


def is_loopback(host: str) -> bool:
    """Whether a host name or address is reachable only from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def cookie_header(scope: Scope, value: str) -> str:
    """Set-Cookie header of the session: HttpOnly, SameSite=Strict, and Secure if the request came over TLS.

    Args:
        scope: of the request; a TLS proxy sets `X-Forwarded-Proto`. A false value only affects its own client.
        value: of the cookie.
    """
    is_tls = Headers(scope=scope).get("x-forwarded-proto", "").strip().lower() == "https"
    return f"{_cookie_name(scope)}={value}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if is_tls else ''}"


def _cookie_name(scope: Scope) -> str:
    """Name of the session cookie; includes the port, because cookies of a host are shared by all its ports."""
    server = scope.get("server") or ("", 0)
    return f"hacpo_{server[1] or 0}"


def _host_name(host: str) -> str:
    """A Host header without the port: "127.0.0.1:8400" gives 127.0.0.1, "[::1]:8400" gives ::1."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def _is_own_origin(headers: Headers) -> bool:
    host = headers.get("host", "")
    return headers.get("origin", "") in (f"http://{host}", f"https://{host}")
