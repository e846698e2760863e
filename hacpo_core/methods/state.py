"""Encoding of a part's state for storage: JSON, with numpy arrays as base64."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from hacpo_core.errors import MethodError

_ARRAY = "__array__"


def encode(state: object, *, owner: str) -> dict[str, Any]:
    """A state as JSON, without loss of precision.

    Args:
        state: a mapping with str keys whose values are JSON values or numpy arrays, at any depth.
        owner: the part, for error messages.

    Raises:
        MethodError: it is anything else.
    """
    if not isinstance(state, Mapping):
        raise MethodError(f"{owner}: the state is of type {type(state).__name__}, expected a mapping; return a dict")
    try:
        encoded: dict[str, Any] = _encode_value(state, owner, "state")
    except RecursionError as error:
        raise MethodError(f"{owner}: the state contains itself; return plain values") from error
    try:
        json.dumps(encoded, allow_nan=False)
    except ValueError as error:  # nan and infinity, which JSON lacks
        raise MethodError(f"{owner}: the state is not JSON ({error}); keep such numbers in a numpy array") from error
    return encoded


def _encode_value(value: object, owner: str, place: str) -> Any:
    if isinstance(value, Mapping):
        for key in value:
            if key == _ARRAY:
                raise MethodError(f"{owner}: {place} has the reserved key {_ARRAY!r}; use another name")
            if not isinstance(key, str):
                raise MethodError(f"{owner}: {place} has the key {key!r}, expected a str; use str({key!r})")
        return {key: _encode_value(item, owner, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode_value(item, owner, f"{place}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {_ARRAY: data, "dtype": value.dtype.str, "shape": list(value.shape)}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise MethodError(
        f"{owner}: {place} is of type {type(value).__name__}, expected JSON values and numpy arrays of numbers; "
        "convert it"
    )


def decode(encoded: Mapping[str, Any]) -> dict[str, Any]:
    """The state that was passed to `encode`, with lists instead of tuples."""
    return {key: _decode_value(value) for key, value in encoded.items()}


def _decode_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _ARRAY in value:
        data = np.frombuffer(base64.b64decode(value[_ARRAY]), dtype=value["dtype"])
        return data.reshape(value["shape"]).copy()
    return decode(value)
