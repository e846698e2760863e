"""Parsing of small posted forms."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request

MOST_BYTES = 1 << 20


async def read_form(request: Request) -> Mapping[str, list[str]]:
    """Values of a posted form, by field.

    Raises:
        HTTPException: the form is too large, or not UTF-8.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise HTTPException(413, "too much at once")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20_000)
    except ValueError as error:
        raise HTTPException(400, "the form is invalid") from error
