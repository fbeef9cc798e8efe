from __future__ import annotations

import signal

import pytest

from launcher import interrupt


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_acts_as_ctrl_c_and_only_inside(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interrupt.as_keyboard_interrupt():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before
