"""Whether something makes decoding faster: found by doing with and without it in turns.

What a measure costs shows in no account of rows and tokens alone, so tokens a second decide. A
window tells little: it may have been of a start, of an odd text or of a busy machine. So the mode
that lost is tried again now and then, the seldomer the more it loses by, and the oftener it has
lost; and it has to lead for some windows in a row before it is the one to go on with.
"""

from __future__ import annotations

_WORTH = 1.02
"""What it has to gain: less is as likely luck, and costs whoever is not measured here."""

_NEWS, _TRIAL_NEWS = 0.2, 0.85
"""Weight of a window in what its mode is worth: of the mode that goes on, and of one on trial. Its
other windows are long past, and that of a bad start would be held against it for minutes."""

_TRY_AFTER, _TRY_AFTER_MOST = 8, 128
"""Windows before the mode that lost is tried again: at least, and at most."""

_SOON, _LATER = 16, 4
"""And after its first trial at most so many; each further one that it loses multiplies them, as the
first does that says what was guessed, or that it loses clearly."""

_BELIEVED = 64
"""Windows in which it is left out, untried, where something else says that it would lose. That it
would gain is believed as long as a verdict of one's own, at the least."""

_DOUBTED = 3
"""And at most so many once the mode that goes on seems to be the worse."""

_CLEARLY = 0.75
"""A mode that does less than so much of what the other does has lost: hardly a window is so odd."""

_SURE = 3
"""Windows that a mode on trial has to lead for, where it has lost, and with it where that was
guessed."""

_TRIALS_COST = 0.005
"""Share of all tokens that trials may cost in between."""

_AFTERMATH = 1.0
"""Windows after a trial that are as slow as it, while what it began is ended."""


class Contest:
    """Two modes, with and without, tried for a window at a time."""

    def __init__(self) -> None:
        self.rates: dict[bool, float] = {}
        """Tokens a second in each."""
        self._leads = {False: 0.0, True: 0.0}  # to windows of each, since the last trial
        self.verdict: bool | None = None
        """The mode to be in; None before both were tried."""
        self._guess: bool | None = None  # from elsewhere, of the better mode
        self._learned = 0  # windows
        self._left = 0  # of these, before the next trial
        self._patience = _SOON  # of these, the most
        self._led = 0  # windows of the trial, in a row, after which its mode was the better one

    def next_mode(self, guess: bool | None = None, *, first: bool = True) -> bool:
        """Whether to go on with it in the next window.

        Args:
            guess: The better mode as far as is known from elsewhere, until both were tried.
            first: Which of them to begin with, where nothing is.
        """
        if self.verdict is not None:
            return self.verdict if self._left > 0 else not self.verdict
        if len(self.rates) < 2:  # else a trial is under way that may refute it
            self._guess = guess
        if self._guess is not None:
            believed = _TRY_AFTER if self._guess else _BELIEVED
            return self._guess if self._learned < believed else not self._guess
        return first if first not in self.rates else not first

    @property
    def settled(self) -> bool | None:
        """The mode to go on with where nothing is to be tried, as far as is known."""
        return self._guess if self.verdict is None else self.verdict

    def hopeless(self, mode: bool, tokens: int, seconds: float) -> bool:
        """Whether a window of a mode on trial need not go on: it does far less than the other.

        Args:
            mode: In which it is.
            tokens: That have come in it.
            seconds: That it has lasted.
        """
        other = self.rates.get(not mode)
        if other is None or mode == self.verdict:
            return False
        return tokens < _CLEARLY * other * seconds

    def learn(self, mode: bool, rate: float, lead: float = 0.0) -> None:
        """Takes a window.

        Args:
            mode: In which it was.
            rate: Tokens a second.
            lead: Time in the mode before the window began, over its own length.
        """
        previous = self.rates.get(mode, rate)
        goes_on = mode == self.settled
        self._leads[mode] = max(lead, self._leads[mode])  # a trial may take several windows
        self._learned += 1
        news = max(_NEWS, 1 / self._learned) if goes_on else _TRIAL_NEWS
        self.rates[mode] = previous + news * (rate - previous)
        self._left -= 1
        if len(self.rates) < 2:
            return
        better = self.rates[True] > _WORTH * self.rates[False]
        if self.verdict is None:
            self._led += better and mode
            if better and self._guess is False and self._led < _SURE:
                return  # as where it has lost: one window may be luck
            self.verdict = better
            worse, best = sorted(self.rates.values())
            if better == self._guess or 0 < worse < _CLEARLY * best:
                self._patience *= _LATER
            self._rest()
        elif goes_on:
            if better != mode:
                self._left = min(self._left, _DOUBTED)
        elif better != mode:
            self._patience = min(_LATER * self._patience, _TRY_AFTER_MOST)
            self._rest()
        else:
            self._led += 1
            if self._led == _SURE:
                self.verdict, self._patience = mode, _SOON
                self._rest()

    def _rest(self) -> None:
        """Sets when the mode that is not the verdict is tried next."""
        worse, better = sorted(self.rates.values())
        windows = self._leads[not self.verdict] + 1 + _AFTERMATH
        loss = windows * (1 - worse / better) if better else 0.0
        self._left = min(max(int(loss / _TRIALS_COST), _TRY_AFTER), self._patience)
        self._led, self._leads = 0, {False: 0.0, True: 0.0}
