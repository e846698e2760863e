"""Parsing of small posted forms."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

MOST_BYTES = 1 << 20


async def read_form(request: Request) -> Mapping[str, list[str]]:
    """Values of a posted form, by field.

    Raises:
        HTTPException: the form is too large, not UTF-8, or cut off.
    """
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                raise HTTPException(413, "too much at once")
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20_000)
    except ValueError as error:
        raise HTTPException(400, "the form is invalid") from error
    except ClientDisconnect as error:  # nobody reads this answer, and it is no error of the page
        raise HTTPException(400, "the form is incomplete") from error
