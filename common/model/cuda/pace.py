"""How far the host goes ahead of a device."""

from __future__ import annotations

import torch


class Pace:
    """Has each pass launched once the one before it is done.

    Where logits are wanted, reading them waits for a pass. Of the others, as those of a long
    prompt, all would be launched at once: whoever comes next would wait for the last of them, and a
    text that is cancelled would be computed to its end.

    Args:
        device: Where passes run, in the order they are launched.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._done = device, torch.cuda.Event()

    def wait(self) -> None:
        """Waits for the last pass launched, if any."""
        self._done.synchronize()

    def launched(self) -> None:
        """Says that a pass was launched."""
        self._done.record(torch.cuda.current_stream(self._device))
