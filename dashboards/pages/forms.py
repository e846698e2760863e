"""Parsing of small posted forms."""

from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

MAX_BYTES = 1 << 20
MAX_EXPERIMENTS = 500
"""experiments of one action: Prefect takes some 50 ms for each"""


async def read_form(request: Request) -> Mapping[str, list[str]]:
    """Values of a posted form, by field.

    Raises:
        HTTPException: the form is too large, not UTF-8, or cut off.
    """
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BYTES:
                raise HTTPException(413, "too much at once")
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20_000)
    except ValueError as error:
        raise HTTPException(400, "the form is invalid") from error
    except ClientDisconnect as error:  # nobody reads this answer, and it is no error of the page
        raise HTTPException(400, "the form is incomplete") from error


def chosen_experiments(form: Mapping[str, list[str]]) -> list[str]:
    """The experiments of a form, each once.

    Raises:
        HTTPException: there are more than MAX_EXPERIMENTS.
    """
    experiments = list(dict.fromkeys(form.get("experiment", [])))
    if len(experiments) > MAX_EXPERIMENTS:
        raise HTTPException(
            413, f"got {len(experiments)} experiments, expected at most {MAX_EXPERIMENTS}; select fewer"
        )
    return experiments
