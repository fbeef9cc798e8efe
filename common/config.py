"""The one configuration loader: defaults < YAML file < environment < flags.

A service's configuration is a frozen, keyword-only dataclass, nested where it helps; the same
names serve everywhere: `engine.block_tokens` in YAML, `PACELINE_VERIFIER_ENGINE__BLOCK_TOKENS` in
the environment, `--engine.block-tokens` as a flag. Commas part a list's items in the environment
and in flags, which may be given several times as well; paths, which may hold commas, only so. An
unknown name is an error in all three, so that a typing mistake never passes for a default. (In
Kubernetes set `enableServiceLinks: false`: a Service called paceline-gateway would otherwise inject
PACELINE_GATEWAY_PORT into every pod.)
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from common.config_schema import Field, describe, fields, parse
from common.errors import ConfigError, reason
from common.printing import shown

T = TypeVar("T")
Values = dict[tuple[str, ...], Any]


def load(
    cls: type[T],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    environ: Mapping[str, str] = os.environ,
) -> T:
    """Builds a configuration from all its sources; `--help` prints it and exits.

    Args:
        cls: A frozen, keyword-only dataclass with a docstring below each field.
        argv: Command-line arguments without the program's name.
        prog: The service's name: "gateway".
        description: One paragraph for `--help`.
        environ: The environment to read.

    Returns:
        The configuration.

    Raises:
        ConfigError: A name is unknown, a value does not fit, or a required one is missing.
    """
    known = list(fields(cls))
    if "--help" in argv or "-h" in argv:
        raise SystemExit(shown(help_text(known, prog=prog, description=description)))
    flags, file = _from_flags(known, argv)
    file = file or environ.get(f"PACELINE_{prog}_CONFIG".upper())
    values: Values = {}
    if file:  # empty is none, as of other settings
        values |= _from_file(known, Path(file))
    values |= _from_environment(known, environ, prog)
    values |= flags
    _require(known, values, prog)
    return _build(cls, values)


def help_text(known: Sequence[Field], *, prog: str, description: str) -> str:
    """Renders every field with its meaning, default and variable, and an example."""
    lines = [f"usage: python -m {prog} [--config FILE] [--name VALUE ...]", "", description, ""]
    lines.append("  --config FILE\n      YAML file with any of the names below.")
    for field in known:
        required = field.default is dataclasses.MISSING
        default = "required" if required else f"default {_show(field.default)}"
        flags = f"{field.flag}, {field.off_flag}" if field.is_bool else field.flag
        lines.append(f"  {flags}  ({describe(field.kind)}; {default})")
        lines.append(textwrap.indent(textwrap.fill(field.doc, 88), "      "))
        lines.append(f"      environment: {field.variable(prog)}")
    wanted = [f for f in known if f.default is dataclasses.MISSING] or list(known[:1])
    example = " ".join(f"{f.flag} {_example(f)}" for f in wanted)
    return "\n".join([*lines, "", f"example: python -m {prog} {example}"])


def _show(default: Any) -> str:
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    return "none" if default is None else str(default) or "empty"


def _example(field: Field) -> str:
    if field.default is not dataclasses.MISSING and field.default not in (None, (), ""):
        return _show(field.default)
    return {"integer": "7070", "path": "./model"}.get(describe(field.kind), "NAME")


def _from_flags(known: Sequence[Field], argv: Sequence[str]) -> tuple[Values, str | None]:
    values: Values = {}
    file: str | None = None
    for flag, value in _pairs(_by_flag(known), argv):
        if isinstance(flag, str):
            file = value
        elif flag.repeated:
            values[flag.path] = (*values.get(flag.path, ()), *parse(flag.kind, value, flag.flag))
        else:
            values[flag.path] = parse(flag.kind, value, flag.flag)
    return values, file


def _by_flag(known: Sequence[Field]) -> dict[str, Field | str]:
    table: dict[str, Field | str] = {"--config": "config"}
    for field in known:
        table[field.flag] = field
        if field.is_bool:
            table[field.off_flag] = field
        if field.repeated:  # given once per item, a plural reads better in the singular
            table[field.flag.removesuffix("s")] = field
    return table


def _pairs(
    table: Mapping[str, Field | str], argv: Sequence[str]
) -> Iterator[tuple[Field | str, str]]:
    rest = list(argv)
    while rest:
        name, given, value = rest.pop(0).partition("=")
        name = name.replace("_", "-")
        field = table.get(name)
        if field is None:
            raise ConfigError(_unknown(name, table, "flag"))
        if given and isinstance(field, Field) and name == field.off_flag:
            raise ConfigError(f"{name}: takes no value; give {field.flag}={value}")
        if not given and isinstance(field, Field) and field.is_bool:
            value = "false" if name == field.off_flag else "true"
            if name == field.flag and rest and rest[0].lower() in ("true", "false"):
                value = rest.pop(0)
        elif not given:
            if not rest:
                raise ConfigError(f"{name}: needs a value")
            value = rest.pop(0)
        yield field, value


def _from_environment(known: Sequence[Field], environ: Mapping[str, str], prog: str) -> Values:
    table = {field.variable(prog): field for field in known}
    prefix = f"PACELINE_{prog}_".upper()
    values: Values = {}
    for name in environ:
        if not name.startswith(prefix) or name == f"{prefix}CONFIG":
            continue
        if name not in table:
            raise ConfigError(_unknown(name, table, "environment variable"))
        values[table[name].path] = parse(table[name].kind, environ[name], name)
    return values


class _Yaml(yaml.SafeLoader):
    """Refuses a name given twice, of which YAML itself takes the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for name in (name for name, _ in node.value if isinstance(name, yaml.ScalarNode)):
            if name.value in seen:
                problem = f"{name.value} is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=name.start_mark)
            seen.add(name.value)
        return node


def read_yaml(text: bytes, where: str) -> Any:
    """Returns what a YAML file holds, in which no name may be given twice.

    Args:
        text: What stands in the file.
        where: Names the file in the error.

    Raises:
        ConfigError: It is not YAML, or a name is given twice.
    """
    try:
        return yaml.load(text, _Yaml)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{where}: cannot be read: {error}") from error


def _from_file(known: Sequence[Field], file: Path) -> Values:
    try:
        tree = read_yaml(file.read_bytes(), str(file))
        leaves = list(_leaves({} if tree is None else tree, file))
    except (OSError, RecursionError) as error:
        raise ConfigError(f"{file}: cannot be read: {reason(error)}") from error
    table = {field.key: field for field in known}
    values: Values = {}
    for key, value in leaves:
        if value == {} and _within(key, table):
            continue
        if key not in table:
            raise ConfigError(f"{file}: {_no_setting(key, value, table)}")
        if table[key].path in values:
            raise ConfigError(f"{file}: {key} is given twice")
        values[table[key].path] = parse(table[key].kind, value, f"{file}: {key}")
    return values


def _leaves(tree: Any, file: Path) -> Iterator[tuple[str, Any]]:
    """Yields what has no names within; a group that is empty stands for itself."""
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: must hold names and values, got {type(tree).__name__}")
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from ((f"{name}.{inner}", leaf) for inner, leaf in _leaves(value, file))
        else:
            yield str(name), value


def _within(key: str, known: Iterable[str]) -> list[str]:
    """The settings of a group."""
    return [name.removeprefix(f"{key}.") for name in known if name.startswith(f"{key}.")]


def _no_setting(key: str, value: Any, known: Iterable[str]) -> str:
    """Says what is wrong with a key of a file: it is unknown, or one of a group of settings."""
    within = _within(key, known)
    if not within:
        return _unknown(key, known, "key")
    return f"{key}: must hold names and values, of {', '.join(within)}; got {value!r}"


def _unknown(name: str, known: Iterable[str], what: str) -> str:
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return f"unknown {what} {name}; the nearest known one is {nearest[0]}"


def _require(known: Sequence[Field], values: Values, prog: str) -> None:
    for field in known:
        if field.default is dataclasses.MISSING and field.path not in values:
            raise ConfigError(
                f"{field.key}: required; give {field.flag}, {field.variable(prog)} "
                f"or {field.key} in the file of --config"
            )


def _build(cls: type[T], values: Values, default: Any = None) -> T:
    """Makes the dataclass; nested ones start from the outer class's default for them."""
    hints, given = get_type_hints(cls), {}
    for entry in dataclasses.fields(cls):  # type: ignore[arg-type]
        below = {path[1:]: value for path, value in values.items() if path[0] == entry.name}
        if () in below:
            given[entry.name] = below[()]
        elif dataclasses.is_dataclass(hints[entry.name]) and below:
            base = getattr(default, entry.name, None) if default else _nested_default(entry)
            given[entry.name] = _build(hints[entry.name], below, base)
    return cls(**given) if default is None else dataclasses.replace(default, **given)


def _nested_default(entry: dataclasses.Field[Any]) -> Any:
    if entry.default_factory is not dataclasses.MISSING:
        return entry.default_factory()
    return None if entry.default is dataclasses.MISSING else entry.default
