"""The wire: stubs match the protos, the protos keep their style, and no release is broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "protos"
STUBS = ROOT / "client" / "paceline" / "v1"
RELEASED = PROTOS / "released.binpb"


def buf(*args: str | Path, cwd: Path = PROTOS) -> subprocess.CompletedProcess[str]:
    """Run buf, which lies beside the interpreter where a virtual environment is not activated."""
    beside = Path(sys.executable).with_name("buf")
    program = beside if beside.exists() else shutil.which("buf")
    assert program, "buf is missing: install the dev group"
    return subprocess.run([program, *args], cwd=cwd, capture_output=True, text=True, check=False)


def test_stubs_are_those_of_the_protos(tmp_path: Path) -> None:
    out = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    sources = sorted(str(p.relative_to(PROTOS)) for p in PROTOS.rglob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *out, *sources]
    subprocess.run(command, cwd=PROTOS, check=True)

    generated = {p.name: p.read_text() for p in (tmp_path / "paceline" / "v1").iterdir()}
    committed = {p.name: p.read_text() for p in STUBS.glob("*_pb2*.py*")}
    assert sorted(generated) == sorted(committed), "run `make protos`"
    stale = [name for name in generated if generated[name] != committed[name]]
    assert not stale, "run `make protos`"


def test_protos_follow_the_rules_of_style() -> None:
    result = buf("lint")
    assert result.returncode == 0, result.stdout + result.stderr


def test_nothing_released_is_broken() -> None:
    result = buf("breaking", "--against", RELEASED)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("file", "before", "after", "complaint"),
    [
        ("types.proto", "  uint32 top_k = 2;\n", "", 'field "2" with name "top_k"'),
        ("types.proto", "uint32 top_k = 2;", "uint64 top_k = 2;", "changed type"),
        ("drafter.proto", "fixed64 path_hash = 4;", "fixed64 path_hash = 99;", '"path_hash"'),
        ("worker.proto", "  rpc Drain(DrainRequest) returns (DrainResponse);\n", "", '"Drain"'),
    ],
)
def test_a_break_is_noticed(
    tmp_path: Path, file: str, before: str, after: str, complaint: str
) -> None:
    shutil.copytree(PROTOS, tmp_path, dirs_exist_ok=True)
    proto = tmp_path / "paceline" / "v1" / file
    text = proto.read_text()
    assert before in text
    proto.write_text(text.replace(before, after, 1))

    result = buf("breaking", "--against", RELEASED, cwd=tmp_path)
    assert result.returncode == 100
    assert complaint in result.stdout


def test_a_field_may_be_added(tmp_path: Path) -> None:
    shutil.copytree(PROTOS, tmp_path, dirs_exist_ok=True)
    proto = tmp_path / "paceline" / "v1" / "types.proto"
    added = "message Usage {\n  // New.\n  uint32 added_tokens = 99;\n"
    proto.write_text(proto.read_text().replace("message Usage {\n", added, 1))

    assert buf("lint", cwd=tmp_path).returncode == 0
    assert buf("breaking", "--against", RELEASED, cwd=tmp_path).returncode == 0
