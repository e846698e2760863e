"""Addresses in a configuration: whether one is that of a server, and passwords, which no file or log may hold."""

import re

_PASSWORD = re.compile(r"(://[^@/\s]*:)[^@\s]*(@)|([?&](?:password|passwd|sslpassword)=)[^&\s]*", re.IGNORECASE)


def is_server(uri: str) -> bool:
    """Whether the address is that of a tracking server."""
    return uri.startswith(("http://", "https://"))


def has_password(uri: str) -> bool:
    """Whether an address contains a password, before its host or in its query."""
    return _PASSWORD.search(uri) is not None


def without_password(text: str) -> str:
    """The text with the passwords of all addresses removed."""
    return _PASSWORD.sub(lambda match: f"{match[1] or match[3]}…{match[2] or ''}", text)
