"""A generation without a server: how it may be cancelled."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import FrameType
from typing import Any

from paceline._generation import Generation
from paceline._resume import Resumption
from paceline.v1 import inference_pb2 as pb


class Call:
    """One that is cancelled as soon as that is asked of it."""

    def cancel(self) -> None:
        pass


def generation() -> Generation:
    resumption = Resumption(pb.GenerateRequest(), 60, lambda: True)
    return Generation(lambda *_: Call(), "host:1", resumption, interruptible=nullcontext)


def cancel_interrupted_after(steps: int) -> int:
    """Cancels a generation, once more in the midst of that as signals may; returns its steps."""
    one, taken = generation(), 0

    def signals(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal taken
        frame.f_trace_opcodes = True
        taken += 1
        if taken == steps:
            sys.settrace(None)
            one.cancel()
        return signals

    before = sys.gettrace()
    sys.settrace(signals)
    try:
        one.cancel()
    finally:
        sys.settrace(before)
    return taken


def test_a_signal_handler_may_cancel_what_is_being_cancelled() -> None:
    steps = cancel_interrupted_after(0)
    assert steps > 10
    for step in range(1, steps):
        cancel_interrupted_after(step)
