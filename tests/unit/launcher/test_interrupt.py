from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from launcher import interrupt


@pytest.fixture(autouse=True)
def _nothing_is_ignored() -> Iterator[None]:
    """As nohup and the background of a script would have it."""
    numbers = (signal.SIGINT, *interrupt.SIGNALS)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_acts_as_ctrl_c_and_only_inside(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interrupt.as_keyboard_interrupt():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, *interrupt.SIGNALS])
def test_what_is_noted_raises_nothing(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with interrupt.noted() as told:
        assert not told()
        signal.raise_signal(number)
        assert told()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("way", [interrupt.as_keyboard_interrupt, interrupt.noted])
def test_what_is_ignored_stays_ignored(way: Callable[[], AbstractContextManager[object]]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with way():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
