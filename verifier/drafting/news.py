"""What drafters say of the sessions they mirror: branches, warm mirrors, the end of one.

A round's key is (base, path hash, outcome): a branch with another key is stale, counted and
dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from verifier.drafting.acquaintance import Acquaintance
from verifier.drafting.link import Branch, DraftLink, RoundKey, Wave
from verifier.drafting.session import DraftSession, RemoteMirror
from verifier.sequence import Sequence

_MOST_AHEAD = 64
"""Waves kept for outcomes of one round."""

_REFUSED_S = 5.0
"""How long a drafter that gave a session up is not asked to mirror it again."""


class DraftNews:
    """Gives what links say to the sessions it is about; on the engine's thread.

    Args:
        too_far: Whether a drafter's drafts would not pay though all of them were right.
    """

    def __init__(self, too_far: Callable[[Acquaintance], bool]) -> None:
        self._too_far = too_far
        self._sessions: dict[int, DraftSession] = {}
        self._last_id = 0
        self.stale = 0
        """Waves dropped: another round's, or come too late; and branches that made no sense."""

    def begin(self, sequence: Sequence) -> DraftSession:
        """A session of which drafters have news from now on."""
        self._last_id += 1
        session = DraftSession(self._last_id, sequence)
        self._sessions[session.id] = session
        return session

    def end(self, session: DraftSession) -> None:
        """What is said of it from now on comes too late."""
        del self._sessions[session.id]

    def arrived(self, wave: Wave) -> None:
        """Takes branches: the one that is waited for, or some for outcomes yet to come."""
        session = self._sessions.get(wave.session)
        if session is None:  # gone while they were on the way, or never there
            self.stale += wave.session > self._last_id
            return
        mirror, came = session.mirror, (wave.base, wave.path_hash)
        if mirror is None or mirror.incarnation != wave.incarnation:
            self.stale += 1
            return
        if mirror.branch is None and (branch := self._find(wave, mirror.key)) is not None:
            self._take(mirror, branch, wave.came_at)
            return
        if mirror.flight == came and len(mirror.ahead) < _MOST_AHEAD:
            mirror.ahead.append(wave)
            return
        if mirror.late and (branch := self._find(wave, mirror.late.key)) is not None:
            # Too late to use, it still tells how long the way is.
            seconds = max(wave.came_at - mirror.late.at, 0.0)
            mirror.known.clock.answered(len(branch), seconds)
            mirror.late = None
            self.stale += 1
        elif mirror.past != came:  # else drafted ahead, for nothing
            self.stale += 1

    def foreseen(self, mirror: RemoteMirror, key: RoundKey) -> Branch | None:
        """The branch that came ahead of an outcome, if one did; the latest, of several."""
        for wave in reversed(mirror.ahead):
            branch = self._find(wave, key)
            if branch is not None:
                return branch
        return None

    def warmed(self, session_id: int, incarnation: int) -> None:
        """A mirror has computed its prompt: from now on drafts are asked for."""
        session = self._sessions.get(session_id)
        if session and session.mirror and session.mirror.incarnation == incarnation:
            session.mirror.warm = True

    def dropped(self, session_id: int, incarnation: int) -> None:
        """The drafter gave a session up: go on with the next drafter, or plainly."""
        session = self._sessions.get(session_id)
        if session and session.mirror and session.mirror.incarnation == incarnation:
            session.refused[session.mirror.link] = time.monotonic() + _REFUSED_S
            session.unlink()

    def lost(self, link: DraftLink) -> None:
        """A drafter is gone with all its mirrors; its sessions go on and look for another."""
        for session in self._sessions.values():
            if session.mirror and session.mirror.link is link:
                session.unlink()

    def _take(self, mirror: RemoteMirror, branch: Branch, came_at: float) -> None:
        """Takes the branch that is waited for."""
        assert mirror.key is not None
        known, seconds = mirror.known, max(came_at - mirror.sent_at, 0.0)
        known.clock.answered(len(branch), seconds, probe=mirror.probe)
        if mirror.probe:
            mirror.probe = False
            mirror.length.reconsider()
            if self._too_far(known):
                mirror.length.stop_trial()
        mirror.link.meter.answered(len(branch), seconds)
        mirror.take(branch.cut(mirror.wanted), mirror.key, time.monotonic())

    def _find(self, wave: Wave, key: RoundKey | None) -> Branch | None:
        """A wave's branch for an outcome, if it has one that makes sense."""
        if key is None or (wave.base, wave.path_hash) != (key.base, key.path_hash):
            return None
        try:
            return wave.find(key.accepted, key.bonus)
        except ValueError:
            self.stale += 1
            return None
