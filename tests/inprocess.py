"""Engines wired together in one process and one thread: fast, and the same every time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.model.loader import Dtype, load
from common.model.medusa.heads import MedusaHeads
from common.model.quantized import Quantize
from common.model.runner import Runner
from common.model.tree import Drawn
from common.sampling_params import SamplingParams
from drafter.branch import Round
from drafter.config import EngineConfig as DraftConfig
from drafter.engine import DraftEngine
from drafter.reply import Reply
from drafter.sessions import Opening as DraftOpening
from verifier.config import EngineConfig
from verifier.drafting.acquaintance import Acquaintances
from verifier.drafting.link import Branch, Ended, Opening, RoundKey
from verifier.drafting.meter import PairMeter
from verifier.drafting.news import DraftNews
from verifier.engine import Engine
from verifier.heads import head_for, load_head, load_heads, runner_options
from verifier.methods import Head
from verifier.sequence import Event, Request

ADDRESS = "in-process"


def runner(
    directory: Path,
    dtype: Dtype = "float32",
    *,
    kv_bytes: int = 16 << 20,
    device: str = "cpu",
    quantize: Quantize = "none",
    most_threads: int = 0,
    eagle: Path | None = None,
) -> Runner:
    """A runner for a model directory, and for `eagle_of` it; on the CPU unless said otherwise."""
    loaded = load(
        str(directory), dtype=dtype, device=device, quantize=quantize, most_threads=most_threads
    )
    weights = load_head(str(eagle), loaded) if eagle else None
    return Runner(loaded, kv_bytes=kv_bytes, **runner_options(weights))


def heads(directory: Path, target: Runner) -> MedusaHeads:
    """Medusa heads for a target."""
    return load_heads(str(directory), target)


def eagle_of(directory: Path, target: Runner) -> Head:
    """A head for a target, whose runner was made for it."""
    return head_for(load_head(str(directory), target.loaded), target)


@dataclass(frozen=True)
class Arrival:
    """A `Wave` of one branch, where no wire is between."""

    session: int
    incarnation: int
    key: RoundKey
    ids: tuple[int, ...]
    drawn: tuple[Drawn, ...] = ()
    came_at: float = field(default_factory=lambda: time.monotonic())

    @property
    def base(self) -> int:
        return self.key.base

    @property
    def path_hash(self) -> int:
        return self.key.path_hash

    def find(self, accepted: int, bonus: int) -> Branch | None:
        asked = (accepted, bonus) == (self.key.accepted, self.key.bonus)
        return Branch(self.ids, self.drawn) if asked else None


class LocalLink:
    """A `DraftLink` that runs the drafter whenever the verifier flushes.

    Args:
        drafter: Its engine.
        fault: Sees every reply and says what arrives instead; for tests of a bad wire.
    """

    def __init__(
        self, drafter: DraftEngine, fault: Callable[[Reply], Iterable[Reply]] | None = None
    ) -> None:
        self.known, self.meter = Acquaintances(), PairMeter()
        self.up, self.near = True, True
        self.news: DraftNews | None = None
        self.drafter = drafter
        self._fault = fault or (lambda reply: [reply])
        self._pending = False

    def reach(self) -> bool:
        return self.up

    def open(self, session: int, incarnation: int, opening: Opening) -> None:
        ids, sampling, drawn, salt, wish = opening
        begun = DraftOpening(tuple(ids), sampling, drawn, salt, *wish)
        self.drafter.sessions.open(self._receive, session, incarnation, begun)
        self._pending = True

    def commit(self, session: int, incarnation: int, ended: Ended) -> None:
        key, ids, wish, verifying = ended
        told = Round(
            base=key.base,
            path_hash=key.path_hash,
            accepted=key.accepted,
            ids=tuple(ids),
            draft_tokens=wish.draft_tokens,
            verifying=verifying,
            fanout=wish.fanout,
            least=wish.least,
        )
        self.drafter.sessions.commit(
            self._receive, session, incarnation, told, told_at=time.monotonic()
        )
        self._pending = True

    def close(self, session: int, incarnation: int) -> None:
        self.drafter.sessions.close(self._receive, session, incarnation)

    def flush(self) -> None:
        if self._pending and self.up:
            self._pending = False
            while self.drafter.step():
                pass

    def hang_up(self, reason: str) -> None:
        self.drafter.sessions.forget(self._receive)

    def _receive(self, replies: list[Reply]) -> None:
        assert self.news is not None
        for sent in replies:
            for reply in self._fault(sent):
                if reply.round is not None:
                    self.news.arrived(
                        Arrival(
                            session=reply.session,
                            incarnation=reply.incarnation,
                            key=RoundKey(
                                base=reply.round.base,
                                path_hash=reply.round.path_hash,
                                accepted=reply.round.accepted,
                                bonus=reply.round.ids[-1],
                            ),
                            ids=reply.ids,
                            drawn=reply.drawn,
                        )
                    )
                elif reply.warm is not None:
                    self.news.warmed(reply.session, reply.incarnation)
                elif reply.dropped is not None:
                    self.news.dropped(reply.session, reply.incarnation)


@dataclass
class Collected:
    """What one request's listener heard."""

    events: list[Event] = field(default_factory=list)
    ticket: int = 0
    """What cancels the request."""

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def ids(self) -> list[int]:
        return [token for event in self.events for token in event.ids]

    @property
    def done(self) -> bool:
        return bool(self.events) and (
            self.events[-1].finish is not None or self.events[-1].error is not None
        )


@dataclass
class Pair:
    """A verifier engine and, where given, its drafter."""

    engine: Engine
    link: LocalLink | None = None

    @classmethod
    def make(
        cls,
        target: Runner,
        draft: Runner | None = None,
        config: EngineConfig | None = None,
        fault: Callable[[Reply], Iterable[Reply]] | None = None,
        *,
        heads: MedusaHeads | None = None,
        eagle: Head | None = None,
        interval_s: float = 0.0,
        drafting: DraftConfig | None = None,
    ) -> Pair:
        config = config or EngineConfig()
        if draft is None:
            return cls(Engine(target, config, heads=heads, eagle=eagle, interval_s=interval_s))
        link = LocalLink(DraftEngine(draft, drafting or DraftConfig()), fault)
        engine = Engine(
            target, config, lambda address: link, heads=heads, eagle=eagle, interval_s=interval_s
        )
        link.news = engine.methods.draft.news
        return cls(engine, link)

    def submit(self, prompt: Sequence[int], max_tokens: int, **options: object) -> Collected:
        """Starts a request; with a drafter the method is "draft" unless said otherwise."""
        heard = Collected()
        drafters = (ADDRESS,) if self.link else ()
        options.setdefault("method", "draft" if self.link else "plain")
        request = Request(
            request_id="test",
            prompt_ids=tuple(prompt),
            max_tokens=max_tokens,
            drafters=drafters,
            **options,  # type: ignore[arg-type]
        )
        heard.ticket = self.engine.submit(request, heard)
        return heard

    def run(self, most_steps: int = 100_000) -> None:
        """Steps until every request has ended."""
        for _ in range(most_steps):
            if not self.engine.live:
                self.engine.step()  # takes the note of what was cancelled last
                return
            if not self.engine.step():
                self.engine.wait(0.01)
        raise AssertionError("the engine does not come to an end")

    def generate(self, prompt: Sequence[int], max_tokens: int, **options: object) -> list[int]:
        """One request from start to end."""
        heard = self.submit(prompt, max_tokens, **options)
        self.run()
        return heard.ids

    def generate_all(
        self,
        cases: Iterable[tuple[Sequence[int], SamplingParams]],
        max_tokens: int,
        **options: object,
    ) -> list[list[int]]:
        """A request for each prompt and sampling, all at once, from start to end."""
        heard = [
            self.submit(prompt, max_tokens, sampling=sampling, **options)
            for prompt, sampling in cases
        ]
        self.run()
        assert all(one.done for one in heard)
        return [one.ids for one in heard]
