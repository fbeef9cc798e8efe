"""Texts by length: what holds for drafts behind one need not behind one that is twice as long."""

_SHORT = 512


def doublings(tokens: int) -> int:
    """0 below 512 tokens, 1 below 1,024 and so on."""
    return (tokens // _SHORT).bit_length()
