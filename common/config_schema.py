"""What a configuration dataclass holds, read from the class itself.

Owns the walk over (nested) dataclass fields, their docstrings and the conversion of one
value from text (flag, environment) or from YAML. `common.config` owns where values come from.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from common.errors import ConfigError

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_NONE = ("", "none", "null")


@dataclass(frozen=True, kw_only=True)
class Field:
    """One leaf of a configuration.

    Attributes:
        path: Field names from the outermost dataclass inwards.
        kind: The resolved type annotation.
        default: The default, or `dataclasses.MISSING` where a value is required.
        doc: The docstring below the field.
    """

    path: tuple[str, ...]
    kind: Any
    default: Any
    doc: str

    @property
    def key(self) -> str:
        """The dotted name, as in YAML: "engine.block_tokens"."""
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        """The command-line flag: "--engine.block-tokens"."""
        return "--" + self.key.replace("_", "-")

    @property
    def repeated(self) -> bool:
        """Whether the field is a tuple, whose flag may be given several times."""
        return get_origin(strip_none(self.kind)) is tuple

    @property
    def is_bool(self) -> bool:
        """Whether the flag needs no value."""
        return strip_none(self.kind) is bool

    @property
    def off_flag(self) -> str:
        """What says no, of one that needs no value."""
        return "--no-" + self.flag[2:]

    def variable(self, prog: str) -> str:
        """The environment variable: "PACELINE_VERIFIER_ENGINE__BLOCK_TOKENS"."""
        return f"PACELINE_{prog}_{'__'.join(self.path)}".upper()


def fields(cls: type[Any], prefix: tuple[str, ...] = (), default: Any = None) -> Iterator[Field]:
    """Yields every leaf of a dataclass in the order of declaration.

    Args:
        cls: The dataclass.
        prefix: Path of the dataclass itself, where it is nested.
        default: An instance whose attributes replace the class's own defaults.
    """
    hints, docs = get_type_hints(cls), _docs(cls)
    for entry in dataclasses.fields(cls):
        value = _default(entry) if default is None else getattr(default, entry.name)
        path, kind = (*prefix, entry.name), hints[entry.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            yield from fields(kind, path, None if value is dataclasses.MISSING else value)
        else:
            yield Field(path=path, kind=kind, default=value, doc=docs.get(entry.name, ""))


def strip_none(kind: Any) -> Any:
    """Returns X for `X | None`, and any other type as it is."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    others = [each for each in get_args(kind) if each is not type(None)]
    assert len(others) == 1, f"unions other than X | None are not supported: {kind}"
    return others[0]


def describe(kind: Any) -> str:
    """Names a type for people: "integer", "one of auto, cpu", "path or none"."""
    inner = strip_none(kind)
    if inner is not kind:
        return f"{describe(inner)} or none"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(str(each) for each in get_args(kind))
    if get_origin(kind) is tuple:
        return f"list of {describe(get_args(kind)[0])}"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}
    return names[kind]


def parse(kind: Any, value: Any, where: str) -> Any:
    """Converts one value, text or YAML, to a field's type.

    Args:
        kind: The field's type.
        value: Text, or what YAML made of it.
        where: Names the source in the error: a flag, a variable, a key of a file.

    Returns:
        The value, of type `kind`.

    Raises:
        ConfigError: The value does not fit.
    """
    inner = strip_none(kind)
    if inner is not kind and (value is None or str(value).lower() in _NONE):
        return None
    try:
        return _convert(inner, value)
    except (ValueError, TypeError, KeyError, OverflowError):
        raise ConfigError(f"{where}: must be {describe(kind)}, got {value!r}") from None


def _convert(kind: Any, value: Any) -> Any:
    if get_origin(kind) is tuple:
        item_kind = get_args(kind)[0]
        items = _split(item_kind, value) if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise TypeError
        return tuple(_convert(item_kind, item) for item in items if item != "")
    if get_origin(kind) is Literal:
        return {str(choice): choice for choice in get_args(kind)}[str(value)]
    if kind is bool:
        return _convert_bool(value)
    if isinstance(value, bool | list | dict | None):
        raise TypeError
    if kind is int and isinstance(value, float):
        raise ValueError
    converted = kind(value)
    if kind is float and not math.isfinite(converted):
        raise ValueError
    return converted


def _split(kind: Any, text: str) -> list[str]:
    """The items of a list; paths may hold commas."""
    return [text] if kind is Path else [item.strip() for item in text.split(",")]


def _convert_bool(value: Any) -> bool:
    word = str(value).lower()
    if word not in _TRUE + _FALSE:
        raise ValueError
    return word in _TRUE


def _default(entry: dataclasses.Field[Any]) -> Any:
    if entry.default_factory is not dataclasses.MISSING:
        return entry.default_factory()
    return entry.default


def _docs(cls: type[Any]) -> dict[str, str]:
    """Reads the string literals that follow fields; Python itself throws them away."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if dataclasses.is_dataclass(owner):
            found |= _docs_of_one(owner)
    return found


def _docs_of_one(cls: type[Any]) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for entry, text in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[entry.target.id] = inspect.cleandoc(str(text.value.value))
    return found
