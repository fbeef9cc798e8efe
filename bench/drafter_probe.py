"""How long a drafter takes to answer, asked the way a verifier asks.

It mirrors one prompt and asks for branches of two lengths; what more the longer one takes is the
time of its draft tokens, what is left is the way there and back.
"""

from __future__ import annotations

import queue
import select
import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import grpc
from paceline.v1 import drafter_pb2, drafter_pb2_grpc, types_pb2, worker_pb2, worker_pb2_grpc

from common import fence
from common.errors import StartupError
from common.inbox import Note
from common.lanes import far
from common.lanes.lane import Lane
from common.rpc import convert
from common.rpc.channel import CLIENT_OPTIONS
from common.tls_config import TlsConfig

SHORT, LONG = 1, 8
ROUNDS = 12
WAIT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Answering:
    """How fast a drafter answers."""

    token_s: float
    """For each draft token."""

    way_s: float
    """For the way there and back, and whatever does not depend on the length."""


def probe(address: str, prompt: Sequence[int]) -> Answering:
    """Measure a drafter that has nothing else to do.

    Args:
        address: Where it is reached.
        prompt: Ids of its vocabulary.

    Raises:
        StartupError: It cannot be reached, does not answer or gives the session up.
    """
    try:
        with (
            grpc.insecure_channel(address, options=CLIENT_OPTIONS) as channel,
            _Session(channel, address, prompt) as session,
        ):
            session.round(LONG)  # the first one pays for what is set up once
            short, long = zip(
                *((session.round(SHORT), session.round(LONG)) for _ in range(ROUNDS)), strict=True
            )
    except (grpc.RpcError, OSError, ValueError) as error:
        raise StartupError(f"the drafter at {address} does not answer: {error}") from None
    at_short, at_long = statistics.median(short), statistics.median(long)
    token_s = max(at_long - at_short, 0.0) / (LONG - SHORT)
    return Answering(token_s=token_s, way_s=max(at_short - SHORT * token_s, 0.0))


class _Session:
    """A verifier's side of one session, by a lane where one of another machine is offered."""

    def __init__(self, channel: grpc.Channel, address: str, prompt: Sequence[int]) -> None:
        self._channel, self._address = channel, address
        self._lane: Lane | None = None
        self._came: deque[drafter_pb2.DraftResponse] = deque()
        self._prompt, self._ids = prompt, list(prompt)
        self._requests: queue.SimpleQueue[drafter_pb2.DraftRequest | None] = queue.SimpleQueue()
        self._call = drafter_pb2_grpc.DrafterStub(channel).Draft(self._outgoing(), timeout=WAIT_S)

    def __enter__(self) -> _Session:
        try:
            self._open()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()

    def round(self, tokens: int) -> float:
        """Commit one more token; return the seconds until the branch after it is there."""
        base, path_hash = len(self._ids), fence.extend(fence.EMPTY, self._ids)
        token = self._prompt[base % len(self._prompt)]  # hardly what was drafted for ahead
        self._ids.append(token)
        commit = drafter_pb2.Commit(
            session=1,
            incarnation=1,
            base=base,
            path_hash=path_hash,
            ids=[token],
            draft_tokens=tokens,
        )
        started = time.perf_counter()
        self._send(drafter_pb2.DraftRequest(commits=[commit]))
        got = 0
        while got < tokens:
            response = self._receive()
            got += sum(
                len(branch.ids)
                for branches in response.branches
                if (branches.base, branches.path_hash) == (base, path_hash)
                for branch in branches.branches
                if (branch.accepted, branch.bonus) == (0, token)
            )
        return time.perf_counter() - started

    def _open(self) -> None:
        """Open a mirror and wait until it is warm."""
        about = worker_pb2_grpc.WorkerStub(self._channel).Describe(
            worker_pb2.DescribeRequest(), timeout=WAIT_S
        )
        self._requests.put(drafter_pb2.DraftRequest(hello=convert.hello(about)))
        offer = dict(self._call.initial_metadata()).get(far.OFFER)
        if offer is not None:
            connection = far.connect(str(offer), self._address, TlsConfig())
            self._lane = Lane(connection, self._parse, far=True)
        greedy = types_pb2.SamplingParams()
        opened = drafter_pb2.Open(session=1, incarnation=1, ids=self._ids, sampling=greedy)
        self._send(drafter_pb2.DraftRequest(opens=[opened]))
        self._receive()

    def _end(self) -> None:
        if self._lane is not None:
            self._lane.close()
        self._requests.put(None)
        self._call.cancel()

    def _send(self, request: drafter_pb2.DraftRequest) -> None:
        if self._lane is None:
            self._requests.put(request)
        else:
            self._lane.send(request.SerializeToString())

    def _receive(self) -> drafter_pb2.DraftResponse:
        response = next(self._call) if self._lane is None else self._by_lane(self._lane)
        if response.drops:
            raise StartupError(f"the drafter gave the session up: {response.drops[0].reason}")
        return response

    def _by_lane(self, lane: Lane) -> drafter_pb2.DraftResponse:
        while not self._came:
            if not any(select.select([lane], [], [], WAIT_S)):
                raise StartupError(f"the drafter did not answer within {WAIT_S:g} s")
            try:
                for note in lane.take():
                    note()
            except EOFError as error:
                raise StartupError(f"the drafter's lane is over: {error}") from None
        return self._came.popleft()

    def _parse(self, message: bytes, _came_at: float) -> list[Note]:
        return [partial(self._came.append, drafter_pb2.DraftResponse.FromString(message))]

    def _outgoing(self) -> Iterator[drafter_pb2.DraftRequest]:
        while (request := self._requests.get()) is not None:
            yield request
