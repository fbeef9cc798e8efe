"""Files of tensors by key: what is damaged is refused by name, however it is damaged."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ModelError
from common.model.tensors_by_key import check, read

TENSORS = {
    "a.weight": torch.arange(12.0).view(4, 3).bfloat16(),
    "d2t": torch.arange(5),
    "t2d": torch.tensor([True, False]),
}


def _pickled(zipped: bool) -> bytes:
    stream = io.BytesIO()
    torch.save(TENSORS, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


FILES = {
    "x.safetensors": safetensors.torch.save(TENSORS),
    "zip.bin": _pickled(zipped=True),
    "old.bin": _pickled(zipped=False),
    "plain.bin": pickle.dumps({"a": [1, 2]}, protocol=2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tensors")


@pytest.mark.parametrize("name", list(FILES)[:3])
def test_tensors_come_back_whatever_the_form(name: str, folder: Path) -> None:
    (folder / name).write_bytes(FILES[name])
    found = read(folder / name, None)
    with (folder / name).open("r+b") as stream:  # of which they keep nothing
        stream.write(bytes(len(FILES[name])))
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[key], value) for key, value in TENSORS.items())
    (folder / name).write_bytes(FILES[name])
    assert list(read(folder / name, "a.")) == ["a.weight"]


@given(name=st.sampled_from(list(FILES)), length=st.floats(0, 1), data=st.data())
def test_a_damaged_file_is_refused_or_read(
    name: str, length: float, data: st.DataObject, folder: Path
) -> None:
    whole = FILES[name]
    content = bytearray(whole[: int(len(whole) * length)] if data.draw(st.booleans()) else whole)
    if content:
        places = st.integers(0, len(content) - 1)
        changes = data.draw(st.dictionaries(places, st.integers(0, 255), max_size=6))
        for place, value in changes.items():
            content[place] = value
    (folder / name).write_bytes(bytes(content))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd protocols
        try:
            found = read(folder / name, None)
        except ModelError:
            return
    assert all(isinstance(value, torch.Tensor) for value in found.values())


@pytest.mark.parametrize(
    "made",
    [
        torch.Tensor.to_sparse,
        lambda whole: whole.to("meta"),
        lambda whole: torch.quantize_per_tensor(whole, 0.1, 0, torch.qint8),
    ],
    ids=["sparse", "meta", "quantized"],
)
def test_a_tensor_that_is_not_plain_is_refused(
    made: Callable[[torch.Tensor], torch.Tensor], folder: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of prototypes
        torch.save({"a.weight": made(torch.ones(2, 2))}, folder / "odd.bin")
        with pytest.raises(ModelError, match=r"odd\.bin: a\.weight: not a plain tensor"):
            read(folder / "odd.bin", None)
        assert read(folder / "odd.bin", "b.") == {}, "nobody wants it"


def test_a_nested_tensor_is_refused(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of prototypes
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])
        torch.save({"a.weight": nested}, folder / "odd.bin")
        # From 2.15 on torch itself refuses the file.
        with pytest.raises(ModelError, match=r"odd\.bin: (a\.weight: not a plain|refused: holds)"):
            read(folder / "odd.bin", None)


@pytest.mark.parametrize(
    ("held", "problem"),
    [
        ({"other": TENSORS["a.weight"]}, r"a\.weight: missing"),
        ({"a.weight": torch.zeros(3, 4)}, r"a\.weight: shape \(3, 4\), but .* needs \(4, 3\)"),
        ({"a.weight": torch.zeros(4, 3).long()}, r"a\.weight: torch\.int64, but must be floating"),
        ({**TENSORS}, "d2t: does not belong"),
    ],
)
def test_what_does_not_fit_is_named(held: dict[str, torch.Tensor], problem: str) -> None:
    with pytest.raises(ModelError, match=rf"some\.file: {problem}"):
        check(Path("some.file"), held, {"a.weight": (4, 3)})
