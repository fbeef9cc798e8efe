"""What is told of workers as they were set up, and how often."""

from __future__ import annotations

import pytest

from common.chat_template import ChatTemplate
from common.tokenizer import Tokenizer
from gateway.complaints import Complaints
from tests.tiny_tokenizers import byte_level
from tests.unit.gateway.candidates import drafter, verifier

OLD, NEW = verifier("old"), verifier("new", tokenizer_fingerprint="g")
ALONE = {"m": byte_level()}


def test_one_name_for_different_tokenizers_is_told_once_until_that_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    complaints = Complaints({"f": ALONE, "g": ALONE})
    told = []
    for fleet in ([OLD], [OLD, NEW], [OLD, NEW], [NEW, OLD], [NEW], [NEW, OLD]):
        caplog.clear()
        complaints.check(fleet, [])
        told.append(len(caplog.records))
    assert told == [0, 1, 0, 0, 0, 1]
    (record,) = caplog.records
    assert record.model == "m"
    assert record.vocabularies == [("f", 100), ("g", 100)]


def test_that_a_model_takes_no_text_is_told_only_where_nobody_of_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Complaints({"f": ALONE}).check([NEW, OLD], [])
    assert not any("token ids only" in message for message in caplog.messages)
    Complaints({"f": ALONE}).check([NEW], [])
    assert any("token ids only" in message for message in caplog.messages)


def test_that_a_model_may_be_rendered_for_another_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answering = Tokenizer(byte_level()._backend, fingerprint="", template=ChatTemplate("x", {}))
    Complaints({"f": {"m": byte_level(), "x": answering}}).check([OLD], [])
    Complaints({"f": {"w": byte_level(), "x": byte_level()}}).check([OLD], [])
    assert not caplog.records
    named = {"w": byte_level(), "x": answering}
    complaints = Complaints({"f": named, "g": named})
    for _ in range(2):
        complaints.check([OLD, NEW], [])
    _, record = caplog.records  # the first is of the two tokenizers
    assert (record.model, record.directories) == ("m", ["w", "x"])


def test_a_drafter_is_told_of_once_where_no_verifier_takes_its_drafts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = verifier("other", model="other", tokenizer_fingerprint="g")
    ours, theirs = drafter("d"), drafter("e", tokenizer_fingerprint="g")
    stranger = drafter("s", tokenizer_fingerprint="h")
    complaints = Complaints({"f": ALONE, "g": ALONE})
    complaints.check([], [ours])
    complaints.check([OLD, other], [ours, theirs])
    assert not caplog.records, "each has its model"
    for _ in range(2):
        complaints.check([OLD, other], [ours, theirs, stranger])
    complaints.forget(["s"])
    complaints.check([OLD, other], [stranger])
    assert [record.drafter for record in caplog.records] == ["s", "s"]
    assert caplog.records[0].reason == "its tokenizer (h) differs from the target's (f)"
