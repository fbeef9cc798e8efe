"""Documents to ids, the way the model will meet them when it is served."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from common.errors import InvalidArgument, ModelError
from common.tokenizer import Tokenizer, lacking
from training.corpus import Document, Turn

Ids = list[int]


class Encoder:
    """A model directory's tokenizer and chat template.

    Args:
        directory: With the tokenizer's files.
        model: The `transformers` model in it, whose ids there may be fewer of.

    Attributes:
        tokenizer: As `transformers` has it, to be saved with a model. Its ids are not always those
            of tokenizer.json, by which the model is served and everything here is encoded.
        end: What ends a text.
        pad: What fills up a row.

    Raises:
        ModelError: No tokenizer there, or one without an end-of-text token.
    """

    def __init__(self, directory: Path, model: Any = None) -> None:
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        except Exception as error:  # of a damaged file tokenizers raise many kinds
            raise ModelError(f"{directory}: no tokenizer to be had there: {error}") from error
        served = Tokenizer.load(directory)
        if served is None:
            raise ModelError(f"{directory}: {lacking(directory)}")
        end = self.tokenizer.eos_token_id
        if end is None:
            raise ModelError(f"{directory}: its tokenizer has no end-of-text token")
        self._directory, self._served = directory, served
        self.end: int = end
        config = None if model is None else model.config.get_text_config()
        self._ids: float = math.inf if config is None else config.vocab_size
        pad = self.tokenizer.pad_token_id
        self.pad: int = end if pad is None or pad >= self._ids else pad

    def documents(self, documents: Iterable[Document]) -> list[Ids]:
        """Ids of whole documents, the end-of-text token included.

        Raises:
            ModelError: There is no chat template for a conversation, or it refuses it; or the model
                has no such id.
        """
        rendered = [self._rendered(document) for document in documents]
        if not rendered:
            return []
        batch = self._served.encode_inner([text for text, _ in rendered])
        start = self._start
        starts = [start if plain else [] for _, plain in rendered]
        return [self._known([*s, *ids, self.end]) for s, ids in zip(starts, batch, strict=True)]

    def prompt(self, document: Document, chooser: random.Random) -> Ids:
        """The beginning of a document that the model is to continue.

        A conversation breaks off where the assistant answers, after any one of the user's turns;
        a text after 4 to 32 tokens.

        Raises:
            ModelError: There is no chat template for a conversation, or it refuses it.
        """
        if document.turns:
            asked = [i for i, turn in enumerate(document.turns) if turn.role == "user"]
            return self.chat(document.turns[: chooser.choice(asked) + 1]) if asked else []
        return self.text(document.text)[: chooser.randint(4, 32)]

    def prompts(
        self,
        documents: Iterable[Document],
        chooser: random.Random,
        *,
        count: int,
        most_tokens: int,
    ) -> list[Ids]:
        """Beginnings of documents in random order.

        Args:
            documents: Each begins one prompt at most.
            chooser: Decides the order, and where they break off.
            count: Most prompts.
            most_tokens: Longer ones are passed over, as are empty ones.

        Raises:
            ModelError: As of whole documents.
        """
        order = list(documents)
        chooser.shuffle(order)
        found = (self.prompt(document, chooser) for document in order)
        short = (self._known(ids) for ids in found if 0 < len(ids) <= most_tokens)
        return list(islice(short, count))

    def chat(self, turns: Sequence[Turn]) -> Ids:
        """A conversation, up to where the assistant answers.

        Raises:
            ModelError: There is no chat template for it, or it refuses it.
        """
        return self._encode(self._template(turns, answer=True))

    def text(self, text: str) -> Ids:
        """A plain text, with the special tokens the model expects before it."""
        return [*self._start, *self._encode(text)]

    def _known(self, ids: Ids) -> Ids:
        if max(ids) >= self._ids:
            problem = f"its tokenizer makes id {max(ids)}, but the model's are 0 to {self._ids - 1}"
            raise ModelError(f"{self._directory}: {problem}")
        return ids

    @property
    def _start(self) -> Ids:
        found = self._served.encode("")
        return found[:-1] if found[-1:] == [self.end] else found

    def _rendered(self, document: Document) -> tuple[str, bool]:
        if document.turns:
            return self._template(document.turns, answer=False), False
        return document.text, True

    def _template(self, turns: Sequence[Turn], *, answer: bool) -> str:
        template = self._served.template
        if template is None:
            raise ModelError(f"{self._directory}: no chat template, which conversations need")
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            return template.render(messages, answer=answer)
        except InvalidArgument as error:
            raise ModelError(
                f"{self._directory}: its chat template refuses a conversation: {error.__cause__}"
            ) from error

    def _encode(self, text: str) -> Ids:
        (ids,) = self._served.encode_inner([text])
        return ids
