"""Which process this is, told from those that it was forked from, whatever their numbers are."""

import os

_mark = object()


def own() -> object:
    """Returns what stands for this process."""
    return _mark


def _begin() -> None:
    global _mark
    _mark = object()


if hasattr(os, "register_at_fork"):  # there are no forks on Windows
    os.register_at_fork(after_in_child=_begin)
