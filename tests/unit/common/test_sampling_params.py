import math
from typing import Any

import pytest

from common.errors import InvalidArgument
from common.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, "sampling.temperature: must be finite and at least 0, got -0.1"),
        ({"temperature": math.inf}, "sampling.temperature: must be finite"),
        ({"temperature": math.nan}, "sampling.temperature: must be finite"),
        ({"top_k": -1}, "sampling.top_k: must be at least 0, got -1"),
        ({"top_p": 0.0}, r"sampling.top_p: must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.5}, r"sampling.top_p: must be in \(0, 1\], got 1.5"),
        ({"top_p": math.nan}, r"sampling.top_p: must be in \(0, 1\], got nan"),
        ({"min_p": -0.5}, r"sampling.min_p: must be in \[0, 1\], got -0.5"),
        ({"min_p": 1.01}, r"sampling.min_p: must be in \[0, 1\], got 1.01"),
        ({"repetition_penalty": 0.0}, "sampling.repetition_penalty: must be finite"),
        ({"repetition_penalty": math.inf}, "sampling.repetition_penalty: must be finite"),
        ({"seed": -1}, r"sampling.seed: must be in \[0, 2\^64 - 1\], got -1"),
        ({"seed": 2**64}, r"sampling.seed: must be in \[0, 2\^64 - 1\]"),
        ({"logit_bias": {10: 1.0}}, r"sampling.logit_bias: token ids must be in \[0, 9\], got 10"),
        ({"logit_bias": {-1: 1.0}}, r"sampling.logit_bias: token ids must be in \[0, 9\], got -1"),
        (
            {"logit_bias": dict.fromkeys(range(1025), 1.0)},
            "sampling.logit_bias: must have at most 1024 entries, got 1025",
        ),
        ({"logit_bias": {3: math.nan}}, "sampling.logit_bias: biases must be finite, got nan"),
    ],
)
def test_refuses_naming_field_and_rule(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{message}"):
        SamplingParams(**fields).validate(vocab_size=10)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 5.0, "top_k": 10**6, "top_p": 1e-9, "min_p": 1.0},
        {"repetition_penalty": 0.5, "logit_bias": {0: -100.0, 9: 100.0}},
        {"min_p": 0.0, "top_p": 1.0, "seed": 2**64 - 1},
    ],
)
def test_accepts_the_limits(fields: dict[str, Any]) -> None:
    SamplingParams(**fields).validate(vocab_size=10)
