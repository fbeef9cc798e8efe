"""Requests as the gateway might get them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from common.sampling_params import SamplingParams
from gateway.request import Ask, Prompt

_ASK = Ask(
    request_id="r",
    model="",
    prompt=Prompt(token_ids=[1, 2]),
    max_tokens=None,
    sampling=SamplingParams(),
    method="auto",
    draft_tokens=0,
    acceptance="coupled",
    stop=(),
    stop_token_ids=(),
    ignore_eos=False,
    session_id="",
)


def ask(**changes: Any) -> Ask:
    """One that leaves all to the gateway, but for some fields."""
    return replace(_ASK, **changes)
