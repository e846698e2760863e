"""Scalars of YAML: names stay as they are written, and numbers are what they look like.

YAML 1.1 reads `on` as true, `007` as 7, `010` as 8 and `1:30` as 90, and the text of what it read is another. So such
scalars are quoted before they are parsed, and converted when the field's type is known.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hacpo_core.config.fields import options
from hacpo_core.errors import ConfigError

UNTYPED = "chat_template_kwargs"
"""field whose values have no declared type, so that YAML decides"""
_BOOL = re.compile(r"(?i:yes|no|on|off)|True|TRUE|False|FALSE")
_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+")
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def quoted(text: str) -> str:
    """YAML in which words and numbers that would be read as another text are quoted; unchanged if it is not YAML."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):  # whoever parses it says what is wrong
        return text
    values = {node.end_mark.index: str(node.value) for node in _odd_scalars(root, set())}
    for end in sorted(values, reverse=True):  # a mark of the start would include an anchor
        text = text[: end - len(values[end])] + json.dumps(values[end]) + text[end:]
    return text


def _odd_scalars(node: Any, visited_ids: set[int]) -> Iterator[yaml.ScalarNode]:
    if node is None or id(node) in visited_ids:
        return
    visited_ids.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        if node.style is None and _is_odd(node):
            yield node
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _odd_scalars(key, visited_ids)
            if key.value != UNTYPED:
                yield from _odd_scalars(value, visited_ids)
    else:
        for child in node.value:
            yield from _odd_scalars(child, visited_ids)


def _is_odd(node: yaml.ScalarNode) -> bool:
    """Whether the value that YAML reads is written in another way than the scalar is."""
    text = str(node.value)
    if _BOOL.fullmatch(text) or _EXPONENT.fullmatch(text):
        return True
    if node.tag not in _NUMBER_TAGS:
        return False
    try:
        return text not in (str(int(text)) if text.lstrip("-").isdigit() else "", repr(float(text)))
    except ValueError:  # 1:30, 0x1f, .inf
        return True


def typed(kind: Any, value: Any, *, source: str, name: str = "") -> Any:
    """A value in which the scalars of text fields are text, and those of number fields are numbers.

    Args:
        kind: type annotation, such as a configuration dataclass.
        value: plain, from `quoted` YAML.
        source: where it comes from, for messages.
        name: dotted name of the value, "" for a whole file.

    Raises:
        ConfigError: YAML reads a number otherwise than it looks.
    """
    kinds = options(kind)
    if isinstance(value, dict):
        section = next(
            (option for option in kinds if dataclasses.is_dataclass(option) or get_origin(option) is dict), None
        )
        kinds_by_key = get_type_hints(section) if dataclasses.is_dataclass(section) else {}
        rest = get_args(section)[1] if get_origin(section) is dict else Any
        prefix = f"{name}." if name else ""
        return {
            key: typed(kinds_by_key.get(key, rest), item, source=source, name=f"{prefix}{key}")
            for key, item in value.items()
        }
    if isinstance(value, list):
        item = next((get_args(option)[0] for option in kinds if get_origin(option) is list), Any)
        return [typed(item, entry, source=source, name=f"{name}[{place}]") for place, entry in enumerate(value)]
    if str in kinds or any(get_origin(option) is Literal for option in kinds):
        return str(value).lower() if isinstance(value, bool) and bool not in kinds else value
    if isinstance(value, str) and {int, float} & set(kinds) and "${" not in value:
        number = _number(value, f"{name} (in {source})")
        is_whole = isinstance(number, float) and number.is_integer() and float not in kinds  # 1e5
        return int(number) if is_whole else number
    return value


def _number(text: str, field: str) -> Any:
    """The number that a text is, or the text if it is none."""
    if not re.fullmatch(r"[-+.0-9].*", text):
        return text
    try:
        number = OmegaConf.create(f"number: {text}").number  # OmegaConf's rules, which also know 1e-6
    except (yaml.YAMLError, OmegaConfBaseException):
        return text
    digits = text.replace("_", "")
    is_octal = re.fullmatch(r"[-+]?0[0-9]+", digits) is not None and int(digits) != number
    if isinstance(number, int | float) and (is_octal or ":" in text):
        raise ConfigError(f"{field}: got {text}, which YAML reads as {number}; write it as a decimal number")
    return number if isinstance(number, int | float) else text
