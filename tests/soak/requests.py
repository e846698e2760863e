"""Requests to the page made with a seed: valid ones, then mutated, as bytes that a client may send."""

import random
from collections.abc import Sequence
from urllib.parse import quote

PATHS = (
    *("/", "/overview", "/grid/small_grid", "/grid/small_grid/changes", "/grid/small_grid/report.html"),
    *("/runs", "/runs/table", "/run/RUN", "/run/RUN/status", "/run/RUN/log"),
    *("/run/RUN/curve.svg", "/run/RUN/curve.csv", "/run/RUN/curve.json"),
    *("/samples/RUN", "/samples/RUN/changes"),
    *("/static/app.css", "/login", "/nothing"),
)
PARAMETERS = (
    *("experiment", "seen", "since", "grid", "pair", "benchmark", "agent", "area"),
    *("step", "problem", "right", "wrong", "verdict", "tag", "text", "order", "problem_id", "sample"),
    *("method", "state", "most", "show", "metrics", "x", "smooth", "first", "last", "filter"),
)
FORMS = ("/actions", "/login")
FIELDS = ("action", "experiment", "text", "token", "priority", "seen")
VALUES = (
    *("", "0", "1", "-1", "40", "1e9", "99999999999999999999", "nan", "inf", "true", "None", "all", "dev", "qwen"),
    "RUN",
    *("../../../etc/passwd", "..\\..\\x", "/etc/passwd", "file:///etc/passwd", "\x00", "\r\nx-evil: 1", "\ud800", "💥"),
    *("<script>alert(1)</script>", "{{7*7}}", "${7*7}", "' or 1=1--", "%s%n", "%00", "%zz", "%2e%2e%2f", "a" * 3_000),
    *("(((", ")", '"', "a=b=c", "-reward", "1;2", "[0]", "x" * 299, "٣"),
)
METHODS = (
    *("GET",) * 30,
    *("HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "PROPFIND", "get", "", "G\x00T"),
)


def request(rng: random.Random, *, runs: Sequence[str], host: str) -> bytes:
    """A request; most of the changes come with the page's own origin.

    Args:
        rng: chooses everything.
        runs: ids of experiments.
        host: name and port.
    """
    is_form = rng.random() < 0.25
    path = rng.choice(FORMS if is_form else PATHS)
    method = "POST" if is_form and rng.random() < 0.9 else rng.choice(METHODS)
    headers = {"Host": host, "Connection": "close", "Accept": rng.choice(("text/html", "*/*", "", "a" * 500))}
    if rng.random() < 0.6:
        path += ("&" if "?" in path else "?") + _pairs(rng, PARAMETERS, rng.choice((1, 2, 5, 40)))
    if rng.random() < 0.3:
        mutated = _mutated(path, rng)
        path = mutated if rng.random() < 0.2 else quote(mutated.encode("utf-8", "surrogatepass"), safe="/?&=%")
    body = b""
    if is_form:
        body = _pairs(rng, FIELDS, rng.choice((0, 1, 3, 200))).encode("utf-8", "surrogatepass")
        if rng.random() < 0.2:
            body = _flipped(body, rng)
        headers["Content-Type"] = rng.choice(("application/x-www-form-urlencoded", "multipart/form-data", "x"))
        headers["Content-Length"] = str(len(body))
        if rng.random() < 0.8:
            headers["Origin"] = f"http://{host}"
    if rng.random() < 0.3:
        headers[rng.choice(_HEADERS)] = rng.choice((*VALUES, _mutated(host, rng)))
    if rng.random() < 0.03:
        headers["Content-Length"] = rng.choice(("-1", "x", "3", "99999999999999999999", ""))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    text = "\r\n".join(lines).replace("RUN", rng.choice(runs)) + "\r\n\r\n"
    head = text.encode("utf-8", "surrogatepass")
    return (_flipped(head, rng) if rng.random() < 0.03 else head) + body


_HEADERS = (
    *("Host", "Cookie", "Origin", "Authorization", "HX-Request", "X-Forwarded-Proto", "Accept", "TE"),
    *("Content-Type", "Transfer-Encoding", "Range", "If-Modified-Since", "Expect", "Upgrade", "X\x00"),
)


def _pairs(rng: random.Random, names: Sequence[str], number: int) -> str:
    pairs = []
    for _ in range(number):
        value = rng.choice(VALUES)
        is_quoted = rng.random() < 0.98
        pairs.append(f"{rng.choice(names)}={quote(value.encode('utf-8', 'surrogatepass')) if is_quoted else value}")
    return rng.choice(("&", "&", ";", "&&")).join(pairs)


def _mutated(text: str, rng: random.Random) -> str:
    place = rng.randint(0, len(text))
    return text[:place] + rng.choice(VALUES) + text[place + rng.randint(0, 3) :]


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data or b"x")
    for _ in range(rng.choice((1, 1, 5))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)
