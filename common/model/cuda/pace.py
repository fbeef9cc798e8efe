"""How far the host goes ahead of a device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


class Pace:
    """A block that launches a pass: entering it waits for the pass before.

    Where logits are wanted, reading them waits for a pass. Of the others, as those of a long
    prompt, all would be launched at once: whoever comes next would wait for the last of them, and a
    text that is cancelled would be computed to its end.

    Args:
        device: Where passes run, in the order they are launched.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._done = device, torch.cuda.Event()

    def __enter__(self) -> None:
        """Waits for the last pass launched, if any."""
        self._done.synchronize()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Takes note of where the pass ends."""
        if kind is None:
            self._done.record(torch.cuda.current_stream(self._device))


def pace_of(device: torch.device) -> AbstractContextManager[None]:
    """What passes on a device are launched in."""
    return Pace(device) if device.type == "cuda" else nullcontext()
