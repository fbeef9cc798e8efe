"""Tokenizers small enough to build in a test, one of each family that decodes differently."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from common.tokenizer import Tokenizer

SPECIAL = "<s>"
WORDS = ["▁the", "▁cat", "s", "▁", "▁▁", "é", "▁日", "本", ".", "a", "b"]


def byte_level() -> Tokenizer:
    """A byte-level BPE with the 256 bytes and a few merges, some across characters' borders."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("ð", "Ł"), ("ðŁ", "ĺ"), ("b", "ð"), ("Ģ", "a"), ("â", "Ĥ")]
    pieces = [SPECIAL, *alphabet, *(left + right for left, right in merges)]
    backend = Backend(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _wrap(backend)


def byte_fallback() -> Tokenizer:
    """A sentencepiece-like model: words with a leading mark, bytes for everything else."""
    pieces = [SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _wrap(backend)


def metaspace() -> Tokenizer:
    """Whole words, the first one without its leading space."""
    pieces = [SPECIAL, "<unk>", *WORDS]
    backend = Backend(models.WordLevel({p: i for i, p in enumerate(pieces)}, unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()
    return _wrap(backend)


def _wrap(backend: Backend) -> Tokenizer:
    backend.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return Tokenizer(backend, fingerprint="", template=None)
