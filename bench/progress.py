"""How a run says what it is doing."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Told what is next, how many passes are done, and how many there will be."""
