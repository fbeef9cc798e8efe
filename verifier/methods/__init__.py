"""Speculation methods, by the name requests use; `+` makes a hybrid of several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from common.model.assistant.head import AssistantHead
from common.model.keyed_head import KeyedHead
from common.model.medusa.heads import MedusaHeads
from verifier.config import EngineConfig
from verifier.cost import StepCost
from verifier.drafting.link import LinkSource
from verifier.gates.crowd import Crowd
from verifier.gates.gated import GatedProposer
from verifier.methods.assistant import AssistantProposer
from verifier.methods.draft import DraftProposer
from verifier.methods.eagle import EagleProposer
from verifier.methods.hybrid import HybridProposer
from verifier.methods.lookahead import LookaheadProposer
from verifier.methods.medusa import MedusaProposer
from verifier.methods.ngram import NgramProposer
from verifier.methods.plain import PlainProposer
from verifier.pool.config import LookaheadConfig
from verifier.pool.shared import SharedPools
from verifier.proposer import Proposer, Reader, Remote, Waiting
from verifier.sequence import Sequence

Head = KeyedHead | AssistantHead
"""What goes on from the target's states by itself."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What methods are made from."""

    config: EngineConfig
    """Sizes."""
    cost: StepCost
    """Of the engine's steps."""
    crowd: Crowd
    """All sequences of the engine."""
    links: LinkSource
    """Finds drafters."""
    heads: MedusaHeads | None = None
    """Medusa's, where the deployment has them."""
    eagle: Head | None = None
    """One that goes on from the target's states, where the deployment has such."""
    lookahead: LookaheadConfig = field(default_factory=LookaheadConfig)
    """Sizes of lookahead decoding."""
    processors: int = 0
    """That passes of several texts take; 0 where they run on a device."""
    fills: bool = False
    """Whether those of one text, too, leave less than half of them to a drafter."""
    parameters: float = 0.0
    """Of the target; decides lookahead's sizes where they are left open."""
    shared: SharedPools | None = None
    """N-grams of other sequences, where the deployment shares them."""


METHODS: dict[str, Callable[[Parts], Proposer | None]] = {
    "plain": lambda parts: PlainProposer(),
    "draft": lambda parts: DraftProposer(
        links=parts.links,
        draft_tokens=parts.config.draft_tokens,
        cost=parts.cost,
        crowd=parts.crowd,
        fanout=parts.config.draft_fanout,
        near_fanout=0 if parts.fills else parts.config.draft_fanout,
        processors=parts.processors,
    ),
    "medusa": lambda parts: _medusa(parts),
    "eagle": lambda parts: _eagle(parts),
    "ngram": lambda parts: NgramProposer(parts.cost, parts.config.tree_nodes),
    "lookahead": lambda parts: LookaheadProposer(
        parts.lookahead,
        parts.cost,
        parameters=parts.parameters,
        most_rows=parts.config.max_batch_tokens,
        shared=parts.shared,
    ),
}
"""Makes each method's proposer, or none where the deployment lacks what it needs; a new method
adds its line here."""

_UNGATED = ("plain", "draft")
"""Methods that have nothing to leave off, or see to it themselves."""


def canonical(method: str) -> str:
    """A hybrid's name with its members in order, whichever way a request puts them."""
    return "+".join(sorted(method.split("+")))


def _medusa(parts: Parts) -> MedusaProposer | None:
    if parts.heads is None:
        return None
    static = parts.config.medusa_tree == "static"
    return MedusaProposer(parts.heads, parts.cost, parts.config.tree_nodes, static=static)


def _eagle(parts: Parts) -> Proposer | None:
    if parts.eagle is None:
        return None
    if isinstance(parts.eagle, AssistantHead):
        return AssistantProposer(parts.eagle, parts.cost, parts.config.tree_nodes)
    return EagleProposer(parts.eagle, parts.cost, parts.config.tree_nodes)


@dataclass
class Methods:
    """The proposers of one engine.

    Args:
        parts: What they are made from.
    """

    parts: Parts
    single: dict[str, Proposer] = field(init=False)
    """By method, those that this deployment has."""
    readers: list[Reader] = field(init=False)
    """Those that are shown the target's states."""
    _asked: dict[str, Proposer] = field(default_factory=dict)  # by canonical name
    _remote: list[Remote] = field(init=False)
    _waiting: list[Waiting] = field(init=False)

    def __post_init__(self) -> None:
        made = {name: make(self.parts) for name, make in METHODS.items()}
        self.single = {name: proposer for name, proposer in made.items() if proposer is not None}
        self.readers = [each for each in self.single.values() if isinstance(each, Reader)]
        self._remote = [each for each in self.single.values() if isinstance(each, Remote)]
        self._waiting = [each for each in self.single.values() if isinstance(each, Waiting)]

    @property
    def draft(self) -> DraftProposer:
        """The one that talks to drafters."""
        draft = self.single["draft"]
        assert isinstance(draft, DraftProposer)
        return draft

    def of(self, sequence: Sequence) -> Proposer:
        """What drafts for a sequence, whose method, or several joined by `+`, is valid and
        canonical."""
        found = self._asked.get(sequence.method)
        if found is None:
            found = self._asked[sequence.method] = self._make(sequence.method)
        return found

    def _make(self, method: str) -> Proposer:
        if "+" in method:
            members = {name: self.single[name] for name in method.split("+")}
            hybrid = HybridProposer(members, self.parts.cost)
            self._waiting.append(hybrid)
            remote = any(isinstance(member, Remote) for member in members.values())
            return GatedProposer(hybrid, self.parts.crowd, self.parts.cost, remote=remote)
        if method in _UNGATED:
            return self.single[method]
        return GatedProposer(self.single[method], self.parts.crowd, self.parts.cost)

    def flush(self) -> None:
        """Ends a step: sends what it gave to tell."""
        for proposer in self._remote:
            proposer.flush()

    def deadline(self, since: float) -> float | None:
        """When the first sequence that waited for a draft then no longer does; see `Waiting`."""
        deadlines = [proposer.deadline(since) for proposer in self._waiting]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)
