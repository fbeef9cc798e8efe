"""The configuration loader: precedence, types, and errors that name the nearest known name."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from common.config import load
from common.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Kv:
    block_tokens: int = 16
    """Tokens in a block."""
    memory_gib: float = 1.0
    """Size in GiB."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A service's settings."""

    model: str
    """Directory or hub id."""
    port: int = 7071
    """Port to listen on."""
    dtype: Literal["auto", "bfloat16"] = "auto"
    """Type of the weights."""
    log_prompts: bool = False
    """Whether logs may carry text."""
    peers: tuple[str, ...] = ()
    """Addresses, host:port."""
    folders: tuple[Path, ...] = ()
    """Folders to read."""
    store: Path | None = None
    """Socket of the store."""
    kv: Kv = field(default_factory=lambda: Kv(block_tokens=32))
    """The cache."""


def settings(*argv: str, environ: dict[str, str] | None = None) -> Settings:
    return load(
        Settings,
        argv if "--model" in argv or "--help" in argv else ("--model", "m", *argv),
        prog="thing",
        description="Does things.",
        environ=environ or {},
    )


def test_defaults_come_from_the_class_and_the_outer_default_of_a_nested_one() -> None:
    assert settings() == Settings(model="m")
    assert settings("--kv.memory-gib", "2").kv == Kv(block_tokens=32, memory_gib=2.0)


def test_flags_beat_environment_beats_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("port: 1\ndtype: bfloat16\nkv: {block_tokens: 8, memory_gib: 3}\n")
    environ = {"PACELINE_THING_PORT": "2", "PACELINE_THING_KV__BLOCK_TOKENS": "64"}
    loaded = settings("--config", str(file), "--port=3", environ=environ)
    assert (loaded.port, loaded.dtype, loaded.kv) == (
        3,
        "bfloat16",
        Kv(block_tokens=64, memory_gib=3.0),
    )
    assert settings(environ={"PACELINE_THING_CONFIG": str(file)}).port == 1
    assert settings(environ={"PACELINE_THING_CONFIG": ""}) == Settings(model="m")


def test_every_type_from_flags_and_environment() -> None:
    loaded = settings("--peers", "a:1", "--peer", "b:2", "--log-prompts", "--store", "/s")
    assert (loaded.peers, loaded.log_prompts, loaded.store) == (("a:1", "b:2"), True, Path("/s"))
    loaded = settings("--peers", "a:1,b:2", "--peer=c:3", "--folder", "/a,b", "--folder", "/c")
    assert loaded.peers == ("a:1", "b:2", "c:3")
    assert loaded.folders == (Path("/a,b"), Path("/c")), "a path may hold a comma"
    environ = {"PACELINE_THING_PEERS": "a:1,b:2", "PACELINE_THING_LOG_PROMPTS": "yes"}
    loaded = settings("--no-log-prompts", "--store", "none", environ=environ)
    assert (loaded.peers, loaded.log_prompts, loaded.store) == (("a:1", "b:2"), False, None)


def test_spaces_around_the_items_of_a_list_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("peers: ' a:1, b:2,'\n")
    expected = ("a:1", "b:2")
    assert settings("--peers", "a:1, b:2").peers == expected
    assert settings(environ={"PACELINE_THING_PEERS": "a:1 , b:2, "}).peers == expected
    assert settings("--config", str(file)).peers == expected


def test_a_path_may_hold_a_comma_wherever_it_is_given(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("folders: /a, b\n")
    expected = (Path("/a, b"),)
    assert settings("--folders", "/a, b").folders == expected
    assert settings(environ={"PACELINE_THING_FOLDERS": "/a, b"}).folders == expected
    assert settings("--config", str(file)).folders == expected
    file.write_text("folders: ['/a, b', /c]\n")
    assert settings("--config", str(file)).folders == (*expected, Path("/c"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--log-prompts"], True),
        (["--log-prompts", "true"], True),
        (["--log-prompts", "false"], False),
        (["--log-prompts=false"], False),
        (["--no-log-prompts"], False),
        (["--log-prompts", "--port", "3"], True),
    ],
)
def test_yes_and_no_are_said_in_any_way_that_help_has(argv: list[str], said: bool) -> None:
    assert settings(*argv).log_prompts == said


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        (["--prot", "1"], {}, "unknown flag --prot; the nearest known one is --port"),
        ([], {"PACELINE_THING_PROT": "1"}, "the nearest known one is PACELINE_THING_PORT"),
        (["--port", "x"], {}, "--port: must be integer, got 'x'"),
        (["--port"], {}, "--port: needs a value"),
        ([], {"PACELINE_THING_LOG_PROMPTS": "perhaps"}, "must be true or false, got 'perhaps'"),
        (["--no-log-prompts=true"], {}, "--no-log-prompts: takes no value"),
        (["--no-log-prompts=false"], {}, "--no-log-prompts: takes no value"),
        (["--kv.memory-gib", "inf"], {}, "--kv.memory-gib: must be number, got 'inf'"),
        ([], {"PACELINE_THING_KV__MEMORY_GIB": "nan"}, "must be number, got 'nan'"),
        (["--dtype", "fp8"], {}, "--dtype: must be one of auto, bfloat16, got 'fp8'"),
        (["--config", "/nowhere.yaml"], {}, "/nowhere.yaml: cannot be read: No such file"),
    ],
)
def test_mistakes_are_named(argv: list[str], environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(*argv, environ=environ)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "kv: {block_token: 1}",
            "unknown key kv.block_token; the nearest known one is kv.block_tokens",
        ),
        ("port: true", "port: must be integer, got True"),
        ("port: 1.5", "port: must be integer, got 1.5"),
        ("peers: {a: 1}", "unknown key peers.a; the nearest known one is peers"),
        ("kv: 3", "kv: must hold names and values, of block_tokens, memory_gib; got 3"),
        ("kv:", "kv: must hold names and values, of block_tokens, memory_gib; got None"),
        ("kv: [1]", "kv: must hold names and values, of block_tokens, memory_gib; got [1]"),
        ("kx: {}", "unknown key kx; the nearest known one is"),
        ("port: {}", "port: must be integer, got {}"),
        ("port: 1\nport: 2", "port is given twice"),
        ("kv: {block_tokens: 1, block_tokens: 2}", "block_tokens is given twice"),
        ("kv.block_tokens: 1\nkv: {block_tokens: 2}", "kv.block_tokens is given twice"),
        ("kv: {memory_gib: .inf}", "kv.memory_gib: must be number, got inf"),
        (f"kv: {{memory_gib: 1{'0' * 400}}}", "kv.memory_gib: must be number, got 10"),
        (f"port: 1{'0' * 5000}", "cannot be read"),
        ("port: 2026-13-13", "cannot be read"),
        ("kv: &a {block_tokens: *a}", "cannot be read"),
        ("? [port]\n: 1", "cannot be read"),
        ("0", "must hold names and values, got int"),
        ("k: 3", "unknown key k; the nearest known one is"),
        ("- 1", "must hold names and values, got list"),
        ("a: [", "cannot be read"),
    ],
)
def test_mistakes_in_the_file_name_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        settings("--config", str(file))
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing", "kv: {}", "kv: {}\nkv.block_tokens: 32"])
def test_a_file_or_a_group_may_be_empty(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert settings("--config", str(file)) == Settings(model="m")


def test_a_name_may_stand_in_a_group_and_in_what_is_merged_into_it(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("kv: {<<: {block_tokens: 8, memory_gib: 3}, block_tokens: 64}")
    assert settings("--config", str(file)).kv == Kv(block_tokens=64, memory_gib=3.0)


def test_a_missing_required_value_says_where_it_can_be_given() -> None:
    with pytest.raises(ConfigError, match=r"model: required; give --model, PACELINE_THING_MODEL"):
        load(Settings, [], prog="thing", description="", environ={})


def test_help_prints_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        settings("--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for part in ("--kv.block-tokens", "Tokens in a block.", "default 32", "--model", "required"):
        assert part in text
    assert "PACELINE_THING_KV__BLOCK_TOKENS" in text
    assert "example: python -m thing --model NAME" in text


def test_a_default_that_is_empty_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Named:
        name: str = ""
        """A name."""

    with pytest.raises(SystemExit):
        load(Named, ["--help"], prog="thing", description="", environ={})
    text = capsys.readouterr().out
    assert "--name  (text; default empty)" in text
    assert text.endswith("example: python -m thing --name NAME\n")


def test_help_that_nobody_reads_to_its_end_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        with pytest.raises(SystemExit) as caught:
            settings("--help")
    assert caught.value.code == 1
