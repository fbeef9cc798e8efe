"""A model directory's tokenizer: text to ids, ids to text, chat template, fingerprint.

Needs `tokenizers` and `jinja2` only (no torch, no transformers); `fingerprint` needs just the
standard library, so that workers can name their tokenizer without loading it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import json_object
from common.added_tokens import complete
from common.errors import InvalidArgument, ModelError, reason
from common.tokenizer_form import canonical, plain

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from common.chat_template import ChatTemplate

_DEFINITION = "tokenizer.json"
_OLDER = (
    "tokenizer.model",
    "tekken.json",
    "tiktoken.model",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)

WRITING = "`AutoTokenizer.from_pretrained(d).save_pretrained(d)` writes tokenizer.json"
"""What helps a model directory d that has a tokenizer in an older form alone."""

LONG = 4_000
"""Characters or ids from which on encoding and decoding take longer than a change of threads. They
go as a batch: of what tokenizers has, only what takes batches lets other threads run meanwhile."""


def fingerprint(directory: Path) -> str:
    """Hashes what decides a tokenizer's ids, but for tokens that only its other files add.

    Those are compared where tokenizers are loaded; see `Tokenizer.same_as`. Truncation and padding
    are left out: they are settings of whoever saved the file. The order of keys and the file's
    layout do not matter either, nor which version wrote it; see `common.tokenizer_form`. Of a
    model that has no tokenizer.json but a tokenizer in an older form, that form's files count.

    Returns:
        SHA-256 in hexadecimal, or "" where the directory has no tokenizer at all.

    Raises:
        ModelError: The file is not JSON.
    """
    definition = _read_json(directory / _DEFINITION)
    if not definition:
        older = [file for file in (directory / name for name in _OLDER) if file.is_file()]
        return hashlib.sha256(b"".join(f.read_bytes() for f in older)).hexdigest() if older else ""
    return _hash(canonical(definition))


def lacking(directory: Path) -> str:
    """Says why a model directory has no tokenizer to load, and what helps."""
    older = next((name for name in _OLDER if (directory / name).is_file()), None)
    return f"`{older}` is not read: {WRITING}" if older else f"no {_DEFINITION} there"


class Tokenizer:
    """A loaded tokenizer. Make one with `Tokenizer.load`.

    Attributes:
        fingerprint: As `fingerprint` says.
        former_fingerprint: Hash of tokenizer.json as it is written, whoever wrote it.
        template: Renders conversations; None where the model has none.
        longest_token_chars: Most characters that one token can stand for.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        fingerprint: str,
        former_fingerprint: str = "",
        template: ChatTemplate | None,
    ) -> None:
        self.fingerprint, self.former_fingerprint = fingerprint, former_fingerprint
        # An entry spells each character of its text with one of its own, or each byte with one.
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.longest_token_chars = max(map(len, vocabulary), default=0)
        self._backend = backend
        self.template = template
        self._pieces: dict[int, str] = {}

    @classmethod
    def load(cls, directory: Path) -> Tokenizer | None:
        """Loads a model directory's tokenizer.

        Returns:
            The tokenizer, or None where the directory has no tokenizer.json; see `lacking`.

        Raises:
            ModelError: The directory is missing or a file in it is corrupt.
        """
        if not directory.is_dir():
            raise ModelError(f"{directory}: no such model directory")
        if not (directory / _DEFINITION).is_file():
            return None
        backend = _load_backend(directory / _DEFINITION)
        file = directory / "tokenizer_config.json"
        settings = _read_json(file)
        special = _special_tokens(directory, settings)
        ends = [special[name] for name in ("bos_token", "eos_token") if name in special]
        complete(backend, file, settings.get("added_tokens_decoder") or {}, ends)
        definition = _read_json(directory / _DEFINITION)
        return cls(
            backend,
            fingerprint=_hash(canonical(definition)),
            former_fingerprint=_hash(plain(definition)),
            template=_load_template(directory, settings, special),
        )

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can be called."""
        return self.template is not None

    def same_as(self, other: Tokenizer) -> bool:
        """Whether another of this fingerprint does the same, by its directory's other files too."""
        return self._kind == other._kind

    @cached_property
    def silent_ids(self) -> frozenset[int]:
        """Ids of special tokens, which `decode` leaves out."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(id_ for id_, token in added.items() if token.special)

    @cached_property
    def joins_bytes(self) -> bool:
        """Whether text is nothing but the bytes of each id, one after another."""
        from tokenizers.decoders import ByteLevel  # lazily: see the module's docstring

        return isinstance(self._backend.decoder, ByteLevel)

    @property
    def _kind(self) -> tuple[object, ...]:
        template = self.template and self.template.key
        added = self._backend.get_added_tokens_decoder()
        return template, frozenset(added.items())

    def piece(self, id_: int) -> str:
        """Returns `decode` of one id; what was asked for before is remembered."""
        piece = self._pieces.get(id_)
        if piece is None:
            piece = self._pieces[id_] = self.decode((id_,))
        return piece

    def encode(self, text: str) -> list[int]:
        """Turns text into ids, with the special tokens the model expects around it."""
        return self._encode(text, special=True)

    def encode_inner(self, texts: Sequence[str]) -> list[list[int]]:
        """Turns texts into ids, without special tokens around them."""
        found = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [each.ids for each in found]

    def decode(self, ids: Sequence[int]) -> str:
        """Turns ids into text, special tokens left out; incomplete characters become U+FFFD."""
        text: str
        if len(ids) < LONG:
            text = self._backend.decode(ids, skip_special_tokens=True)
        else:
            (text,) = self._backend.decode_batch([ids], skip_special_tokens=True)
        return text

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], time_s: float | None = None
    ) -> list[int]:
        """Renders a conversation up to the point where the assistant answers.

        Args:
            messages: Turns, oldest first, with "role" and "content".
            time_s: What a template is told that asks for the time; see `ChatTemplate.render`.

        Returns:
            The ids; the template itself writes the special tokens.

        Raises:
            InvalidArgument: The template refuses the messages.
        """
        assert self.template is not None, "check has_chat_template first"
        return self._encode(self.template.render(messages, time_s), special=False)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        if len(text) < LONG:
            found = self._backend.encode(text, add_special_tokens=special)
        else:
            (found,) = self._backend.encode_batch_fast([text], add_special_tokens=special)
        ids: list[int] = found.ids
        return ids


def _hash(form: Mapping[str, Any]) -> str:
    written = json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()


def _load_backend(path: Path) -> Backend:
    from tokenizers import Tokenizer as Backend  # lazily: see the module's docstring

    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelError(f"{path}: not a tokenizer: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _load_template(
    directory: Path, settings: Mapping[str, Any], special: Mapping[str, str]
) -> ChatTemplate | None:
    from common.chat_template import ChatTemplate  # lazily: see the module's docstring

    file, other = directory / "chat_template.jinja", directory / "chat_template.json"
    source = (
        _read(file)
        if file.is_file()
        else _template_source(directory / "tokenizer_config.json", settings)
        or _template_source(other, _read_json(other))  # of a model that sees pictures
    )
    if not source:
        return None
    try:
        return ChatTemplate(source, special)
    except InvalidArgument as error:
        raise ModelError(f"{directory}: the chat template is broken: {error}") from error


def _template_source(file: Path, settings: Mapping[str, Any]) -> str | None:
    """A template is given as text or among others that have names: we take "default"."""
    source = settings.get("chat_template")
    try:
        if isinstance(source, list):
            source = {each["name"]: each["template"] for each in source}
        if isinstance(source, dict):
            source = source.get("default")
        if not isinstance(source, str | None):
            raise TypeError
    except (KeyError, TypeError):
        problem = "chat_template: must be text, or a list of names and templates"
        raise ModelError(f"{file}: {problem}") from None
    return source


def _special_tokens(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name, from where `transformers` takes them."""
    named = dict(settings)
    if "added_tokens_decoder" not in settings:  # files that have it repeat these there
        named |= _read_json(directory / "special_tokens_map.json")
    if isinstance(more := named.get("extra_special_tokens"), dict):
        named |= more
    tokens = {name: _content(token) for name, token in named.items() if name.endswith("_token")}
    return {name: text for name, text in tokens.items() if isinstance(text, str)}


def _content(token: Any) -> Any:
    """A special token is given as text or as {"content": text, …}."""
    return token.get("content") if isinstance(token, dict) else token


def _read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a file, or an empty one where there is no file."""
    return json_object.read(path) if path.exists() else {}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {reason(error)}") from error
