"""Protobuf to dataclasses and back, for messages that more than one service handles."""

from __future__ import annotations

from paceline.v1 import drafter_pb2, types_pb2, worker_pb2

from common.errors import InvalidArgument
from common.lookahead_sizes import LookaheadSizes
from common.sampling_params import SamplingParams

_ACCEPTANCES = {
    types_pb2.ACCEPTANCE_UNSPECIFIED: "coupled",
    types_pb2.ACCEPTANCE_COUPLED: "coupled",
    types_pb2.ACCEPTANCE_REJECTION: "rejection",
    types_pb2.ACCEPTANCE_TYPICAL: "typical",
}
_ACCEPTANCE_VALUES = {name: value for value, name in _ACCEPTANCES.items()}

TIERS = {"verifier": worker_pb2.TIER_VERIFIER, "drafter": worker_pb2.TIER_DRAFTER}
"""Halves of the fleet, by name."""
TIER_NAMES = {value: name for name, value in TIERS.items()}

LANES = {"none": worker_pb2.LANE_NONE, "near": worker_pb2.LANE_NEAR, "far": worker_pb2.LANE_FAR}
"""Ways past gRPC, by name."""
LANE_NAMES = {value: name for name, value in LANES.items()}

LOSSY = frozenset({"typical"})
"""Acceptance rules that change the distribution of the text."""


def sampling_from_proto(message: types_pb2.SamplingParams) -> SamplingParams:
    """Reads sampling parameters; unset optional fields get their neutral values, seed 0."""
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        min_p=message.min_p,
        repetition_penalty=(
            message.repetition_penalty if message.HasField("repetition_penalty") else 1.0
        ),
        logit_bias=dict(message.logit_bias),
        seed=message.seed,
    )


def sampling_to_proto(params: SamplingParams) -> types_pb2.SamplingParams:
    """Writes sampling parameters with every field set."""
    return types_pb2.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        logit_bias=dict(params.logit_bias),
        seed=params.seed,
    )


def lookahead_from_proto(message: types_pb2.LookaheadOptions) -> LookaheadSizes:
    """Reads sizes of lookahead decoding; unset ones are 0."""
    return LookaheadSizes(window=message.window, ngram=message.ngram, guesses=message.guesses)


def lookahead_to_proto(sizes: LookaheadSizes) -> types_pb2.LookaheadOptions:
    """Writes sizes of lookahead decoding."""
    return types_pb2.LookaheadOptions(window=sizes.window, ngram=sizes.ngram, guesses=sizes.guesses)


def acceptance_from_proto(value: types_pb2.Acceptance) -> str:
    """Returns the rule's name: "coupled" (also where unset), "rejection" or "typical"."""
    if value not in _ACCEPTANCES:
        problem = f"must be one of coupled, rejection, typical, got enum value {value}"
        raise InvalidArgument("speculation.acceptance", problem)
    return _ACCEPTANCES[value]


def acceptance_to_proto(name: str) -> types_pb2.Acceptance:
    """Returns the enum value of a rule's name."""
    return _ACCEPTANCE_VALUES[name]


def hello(worker: worker_pb2.DescribeResponse) -> drafter_pb2.Hello:
    """What the other end of a draft stream is told of a worker's model."""
    return drafter_pb2.Hello(
        tokenizer_fingerprint=worker.tokenizer_fingerprint, vocab_size=worker.vocab_size
    )
