"""Who waits for admission, and whose turn it is: fair among tenants, first come within one.

A verifier tells tenants apart by their cache salts. The tenant that was given the least so far
goes first, counted in rows: of the prompt at admission, and of each step after that. A tenant
that comes back begins where those who wait are, so being away saves nothing up (the virtual
token counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). Of two
tenants that always have something waiting, neither gets ahead by more than its largest prompt
and what runs of it.
"""

from __future__ import annotations

from collections import deque

from verifier.sequence import Sequence

_MOST_TENANTS = 1024
"""Tenants whose rows are remembered though none of theirs waits."""


class WaitingLine:
    """The line of one engine. Sequences that were let in once and put back stand before it."""

    def __init__(self) -> None:
        self._back: deque[Sequence] = deque()
        self._lines: dict[bytes, deque[Sequence]] = {}
        self._rows: dict[bytes, int] = {}
        self._floor = 0  # rows of the tenant that was let in last, before that

    def __len__(self) -> int:
        return len(self._back) + sum(map(len, self._lines.values()))

    def append(self, sequence: Sequence) -> None:
        """Takes a newcomer, behind all others of its tenant."""
        salt = _salt(sequence)
        if salt not in self._lines:
            least = min((self.rows(line[0]) for line in self._lines.values()), default=0)
            self._rows[salt] = max(self.rows(sequence), least)
            self._lines[salt] = deque()
        self._lines[salt].append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Takes one that was let in before and had to give way; it goes first."""
        self._back.appendleft(sequence)

    def first(self) -> Sequence | None:
        """Whose turn it is; None where nobody waits."""
        if self._back:
            return self._back[0]
        heads = (line[0] for line in self._lines.values())
        return min(heads, key=lambda head: (self.rows(head), head.ticket), default=None)

    def admit(self, sequence: Sequence, rows: int) -> None:
        """Lets the first one in.

        Args:
            sequence: As `first` named it.
            rows: Of its prompt, that are to be computed.
        """
        if sequence in self._back:  # it has paid already
            self._back.remove(sequence)
            return
        self._floor = self.rows(sequence)
        self.remove(sequence)
        self.charge(sequence, rows)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, where it waits at all."""
        if sequence in self._back:
            self._back.remove(sequence)
            return
        salt = _salt(sequence)
        line = self._lines.get(salt, deque())
        if sequence in line:
            line.remove(sequence)
            if not line:
                del self._lines[salt]

    def charge(self, sequence: Sequence, rows: int) -> None:
        """Counts rows that are computed for a sequence, to its tenant."""
        self._rows[_salt(sequence)] = self.rows(sequence) + rows
        if len(self._rows) > _MOST_TENANTS + len(self._lines):
            self._rows = {salt: self._rows[salt] for salt in self._lines}

    def rows(self, sequence: Sequence) -> int:
        """Rows that the sequence's tenant was given, or would have been had it always been here."""
        return max(self._rows.get(_salt(sequence), 0), self._floor)


def _salt(sequence: Sequence) -> bytes:
    return sequence.request.cache_salt
