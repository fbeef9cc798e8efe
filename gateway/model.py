"""A model, as requests name it: what its verifiers agree in."""

from __future__ import annotations

from dataclasses import dataclass

from common.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that is served.

    Attributes:
        name: Its name in requests.
        tokenizer_fingerprint: Of the tokenizer that its ids are of.
        vocab_size: Ids run from 0 to vocab_size - 1.
        max_model_len: Most tokens of prompt and output together.
        methods: Speculation methods that some of its verifiers run, or ran of late.
        eos_token_ids: Ids that end a generation.
        tokenizer: Its tokenizer, or None where it takes token ids only.
    """

    name: str
    tokenizer_fingerprint: str
    vocab_size: int
    max_model_len: int
    methods: tuple[str, ...]
    eos_token_ids: tuple[int, ...]
    tokenizer: Tokenizer | None

    @property
    def vocabulary(self) -> tuple[str, int]:
        """What its token ids mean; verifiers of its name may be of another one."""
        return self.tokenizer_fingerprint, self.vocab_size

    @property
    def has_chat_template(self) -> bool:
        """Whether it takes chat messages."""
        return self.tokenizer is not None and self.tokenizer.has_chat_template
