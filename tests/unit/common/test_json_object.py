"""Objects in files: whatever else is there is told of by the file's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from common import json_object
from common.errors import ModelError


def test_an_object_is_read(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_text('{"é": [1, null]}', encoding="utf-8")
    assert json_object.read(file) == {"é": [1, None]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "cannot be read: Expecting value"),
        (b'{"a": "\xff"}', "cannot be read: 'utf-8' codec"),
        (b'{"a": 1' + b"0" * 9999 + b"}", "cannot be read: Exceeds the limit"),
        (b'{"a":' + b"[" * 100_000, "cannot be read: .*(recursion|flow)"),
        (b"[1]", "must hold a JSON object$"),
        (b"null", "must hold a JSON object$"),
    ],
)
def test_anything_else_is_named(content: bytes, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=rf"^{file}: {problem}"):
        json_object.read(file)


def test_so_is_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        json_object.read(tmp_path / "some.json")
    assert (
        str(caught.value) == f"{tmp_path / 'some.json'}: cannot be read: No such file or directory"
    )
