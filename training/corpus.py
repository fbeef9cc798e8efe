"""Corpora: files of text, problems or conversations, read into documents.

A `.jsonl` file holds one object a line, each a document:

    {"text": …}                                               a text
    {"question": …, "answer": …}                              a conversation of two turns
    {"messages": [{"role": …, "content": …}, …]}              a conversation

Any other file is plain text. Where it has `<|endoftext|>`, documents stand between those; else
between blank lines. One whose lines all start with `User: ` or `Assistant: ` is a conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.errors import DataError

_SEPARATOR = "<|endoftext|>"
_ROLES = {"User": "user", "Assistant": "assistant"}
_TURN = re.compile(rf"({'|'.join(_ROLES)}): ?(.*)")


@dataclass(frozen=True)
class Turn:
    """One side's words in a conversation.

    Attributes:
        role: "user", "assistant", or another that the model's chat template knows.
        content: Its text.
    """

    role: str
    content: str


@dataclass(frozen=True)
class Document:
    """A text, or a conversation.

    Attributes:
        text: The text; "" for a conversation.
        turns: The conversation; empty for a text.
    """

    text: str = ""
    turns: tuple[Turn, ...] = ()


def read(paths: Sequence[Path]) -> list[Document]:
    """Reads files in order.

    Raises:
        DataError: A file is missing, empty, not UTF-8 or not of a form above.
    """
    return [document for path in paths for document in _read_file(path)]


def read_text(path: Path) -> str:
    """Reads a file of text.

    Raises:
        DataError: It is missing or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: byte {error.start} is {error.reason}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _read_file(path: Path) -> list[Document]:
    text = read_text(path)
    records = _records(path, text) if path.suffix == ".jsonl" else _plain(text)
    documents = list(records)
    if not documents:
        raise DataError(f"{path}: empty: holds no document")
    return documents


def _plain(text: str) -> Iterator[Document]:
    separated = _SEPARATOR in text
    for piece in text.split(_SEPARATOR) if separated else re.split(r"\n\s*\n", text):
        if words := piece.strip():
            yield _conversation(words) or Document(text=words)


def _conversation(words: str) -> Document | None:
    matches = [_TURN.fullmatch(line) for line in words.split("\n")]
    turns = [Turn(_ROLES[match[1]], match[2]) for match in matches if match]
    return Document(turns=tuple(turns)) if len(turns) == len(matches) else None


def _records(path: Path, text: str) -> Iterator[Document]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _record(f"{path}, line {number}", line)


def _record(where: str, line: str) -> Document:
    try:
        record = json.loads(line)
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: holds half a character: a lone surrogate") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    match record:
        case {"text": str(text)} if text.strip():
            return Document(text=text.strip())
        case {"question": str(question), "answer": str(answer)}:
            return Document(turns=(Turn("user", question), Turn("assistant", answer)))
        case {"messages": [*messages]} if messages:
            return Document(turns=tuple(_turn(where, message) for message in messages))
        case {"text": str()}:
            raise DataError(f'{where}: "text" is empty')
    raise DataError(f'{where}: needs "text", "question" and "answer", or "messages"')


def _turn(where: str, message: object) -> Turn:
    match message:
        case {"role": str(role), "content": str(content)}:
            return Turn(role, content)
    raise DataError(f'{where}: each of "messages" needs "role" and "content"')
