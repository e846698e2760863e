"""A user's own class, named as `package.module:Class`: imported, and checked against the class that it derives from."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Collection
from typing import TypeVar

from hacpo_core.errors import ConfigError, did_you_mean

_Base = TypeVar("_Base")


def user_class(field: str, name: str, base: type[_Base], *, shipped: Collection[str]) -> type[_Base]:
    """The class with this name.

    Args:
        field: configuration field that names it, for messages.
        name: `package.module:Class`.
        base: abstract class that it must be derived from.
        shipped: the names that are not a user's, for messages.

    Raises:
        ConfigError: the name is unknown, cannot be imported, or is no implementation of `base`.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        hint = did_you_mean(name, list(shipped))
        raise ConfigError(
            f"{field}: got {name!r}, expected one of {', '.join(shipped)}, or package.module:Class of your own"
            f"{hint and f'; {hint}'}"
        )
    try:
        source = importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"{field}: {name} cannot be imported ({type(error).__name__}: {error}); put the folder of "
            f"{module.partition('.')[0]} on PYTHONPATH, or name a class of an importable module"
        ) from error
    implementation = getattr(source, attribute, None)
    if implementation is None:
        hint = did_you_mean(attribute, dir(source))
        raise ConfigError(f"{field}: {module} has no class {attribute!r}; {hint or 'write it there'}")
    is_derived = isinstance(implementation, type) and issubclass(implementation, base)
    is_fit = is_derived and dataclasses.is_dataclass(implementation)
    if not is_fit:
        raise ConfigError(
            f"{field}: {name} is not of class {base.__name__}; derive a frozen dataclass from "
            f"{base.__module__}.{base.__name__}"
        )
    missing_names = ", ".join(sorted(getattr(implementation, "__abstractmethods__", ())))
    if missing_names:
        raise ConfigError(f"{field}: {name} lacks {missing_names}; implement it")
    return implementation  # type: ignore[no-any-return]
