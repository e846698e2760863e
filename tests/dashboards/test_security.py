"""Hosts, origins of changes, log-in, headers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from dashboards.app import LOOPBACK
from dashboards.page_server import Options, find_token
from dashboards.security import WRONG_TOKEN_S, Access
from hacpo_core.errors import ConfigError
from tests.dashboards.conftest import ORIGIN

TOKEN = "correct horse battery"
LOCKED = Access(LOOPBACK, TOKEN)


def test_only_known_hosts_are_answered(page: TestClient) -> None:
    for host in ("127.0.0.1", "localhost:8400", "[::1]:8400", "LOCALHOST"):
        assert page.get("/", headers={"host": host}).status_code == 200, host
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:8400", "", "[::2]"):
        for path in ("/", "/static/app.css", "/login"):
            assert page.get(path, headers={"host": host}).status_code == 421, host


def test_every_change_needs_the_pages_own_origin(page: TestClient) -> None:
    declared = page.app.openapi()["paths"]  # type: ignore[attr-defined]
    paths = [path for path, methods in declared.items() if set(methods) - {"get"}]
    assert sorted(paths) == ["/actions", "/login"]
    for path in paths:
        assert "refused" not in page.post(path, headers={"origin": ORIGIN}).text
        for origin in (None, "", "http://evil.example", "null", f"{ORIGIN}:1"):
            refused = page.post(path, headers={} if origin is None else {"origin": origin})
            assert refused.status_code == 403 and "refused" in refused.text, (path, origin)


def test_headers_of_every_answer(page: TestClient) -> None:
    for path in ("/", "/nope", "/static/app.css", "/static/vendor/htmx.min.js", "/login"):
        headers = page.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert headers["referrer-policy"] == "no-referrer"
    assert page.get("/").headers["cache-control"] == "no-store"


def test_forged_session_is_not_admitted(open_page: Callable[..., TestClient]) -> None:
    page = open_page(LOCKED)
    for cookie in ("forged.0000", "forged.", ".", ""):
        page.cookies.set("hacpo_80", cookie)
        assert page.get("/", headers={"accept": "text/html"}).status_code == 303, cookie


def test_without_the_token_only_the_log_in_is_shown(open_page: Callable[..., TestClient]) -> None:
    page = open_page(LOCKED)
    assert page.get("/", headers={"accept": "text/html"}).headers["location"] == "/login"
    for path in ("/", "/run/x", "/run/x/curve.csv", "/samples/x"):
        assert page.get(path).status_code == 401
    assert page.get("/grid/small_grid/changes", headers={"hx-request": "true"}).headers["hx-redirect"] == "/login"
    assert page.get("/login").status_code == 200 and page.get("/static/app.css").status_code == 200


def test_log_in_opens_the_page(open_page: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("dashboards.security.asyncio.sleep", sleep)
    page = open_page(LOCKED)
    headers = {"origin": ORIGIN}
    wrong = page.post("/login", data={"token": "correct horse"}, headers=headers)
    assert wrong.status_code == 403 and page.get("/").status_code == 401
    right = page.post("/login", data={"token": TOKEN}, headers=headers)
    assert waited == [WRONG_TOKEN_S], "a wrong token alone is slowed down"
    cookie = right.headers["set-cookie"]
    assert right.headers["hx-redirect"] == "/" and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert page.get("/").status_code == 200
    page.cookies.clear()
    for other in ('prefs={"theme": "dark"}', "flag", "a=b"):  # cookies of another page of this host
        assert page.get("/", headers={"cookie": f"{other}; {cookie.partition(';')[0]}"}).status_code == 200, other
    assert TOKEN not in page.get("/").text


def test_too_long_forms_are_refused(page: TestClient) -> None:
    assert page.post("/actions", content=b"x" * (1 << 20) + b"y", headers={"origin": ORIGIN}).status_code == 413
    assert page.post("/actions", content=b"\xff", headers={"origin": ORIGIN}).status_code == 400


def test_off_loopback_a_token_is_made_once_for_the_owner_alone(runs_dir: Path) -> None:
    assert find_token(runs_dir, Options()) is None
    made = find_token(runs_dir, Options(host="0.0.0.0"))
    assert made is not None and len(made) >= 32
    assert find_token(runs_dir, Options(host="0.0.0.0")) == made
    assert (runs_dir / "prefect" / "dashboard-token.txt").stat().st_mode & 0o777 == 0o600


def test_named_token_file_counts_on_loopback_and_must_be_private(tmp_path: Path, runs_dir: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(ConfigError, match="cannot read"):
        find_token(runs_dir, Options(token_file=path))
    path.write_text("short\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="others can read"):
        find_token(runs_dir, Options(token_file=path))
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="5 characters"):
        find_token(runs_dir, Options(token_file=path))
    path.write_text(f"{TOKEN}\n", encoding="utf-8")
    assert find_token(runs_dir, Options(token_file=path)) == TOKEN


def test_cookie_that_came_by_tls_is_never_sent_without(open_page: Callable[..., TestClient]) -> None:
    page = open_page(LOCKED)
    for headers in ({}, {"x-forwarded-proto": "https"}):
        entered = page.post("/login", data={"token": TOKEN}, headers={"origin": ORIGIN, **headers})
        cookie = entered.headers["set-cookie"]
        assert cookie.startswith("hacpo_80=") and ("Secure" in cookie) == bool(headers)


def test_proxy_before_loopback_needs_the_token(runs_dir: Path) -> None:
    assert find_token(runs_dir, Options(allow_hosts=["localhost", "127.0.0.2"])) is None
    assert find_token(runs_dir, Options(allow_hosts=["localhost", "Grid.example"])) is not None
