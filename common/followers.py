"""Counts of the tokens that followed something, bounded in number."""

from __future__ import annotations

MOST_FOLLOWERS = 16
"""Kept for one context; the rare half goes when there are more."""


def commonest(followers: dict[int, float]) -> dict[int, float]:
    """The commoner half, at half its counts, so that newcomers get a chance."""
    ranked = sorted(followers.items(), key=lambda item: item[1], reverse=True)
    return {token: count / 2 for token, count in ranked[: MOST_FOLLOWERS // 2]}
