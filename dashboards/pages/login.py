"""Log-in page, used if a token is required."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dashboards.pages.forms import read_form
from dashboards.security import LOGIN_PATH, Guard, cookie_header
from dashboards.site import Site


def login_routes(site: Site) -> APIRouter:
    """The page that asks for the token."""
    router = APIRouter()

    @router.get(LOGIN_PATH)
    def login(request: Request) -> Response:
        return site.page(request, "login.html")

    @router.post(LOGIN_PATH)
    async def enter(request: Request) -> Response:
        guard: Guard = request.state.guard
        token = (await read_form(request)).get("token", [""])[0].strip()
        if not guard.is_token(token):
            await guard.slow_down()
            return HTMLResponse("Wrong token.", 403)
        cookie = cookie_header(request.scope, guard.session())
        return Response(status_code=204, headers={"HX-Redirect": "/", "set-cookie": cookie})

    return router
