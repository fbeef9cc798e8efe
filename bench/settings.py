"""What a run of the bench is to measure: the short profile, and the full one."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.validation import PROPOSERS
from launcher.models import Models

PLAIN = "plain"
DRAFT = "draft"
LOCKSTEP = "draft, lockstep"
"""Drafting without going ahead: the drafter rests while a draft is checked."""

METHODS = (PLAIN, *PROPOSERS)
HYBRIDS = ("draft+ngram", "draft+lookahead", "medusa+ngram", "eagle+ngram")

PEERS = {
    "engine": "engine, in process",
    "transformers": "transformers",
    "assisted": "transformers, assisted",
    "lookup": "transformers, prompt lookup",
    "llama": "llama.cpp",
    "llama-draft": "llama.cpp, draft model",
    "vllm": "vLLM",
    "vllm-draft": "vLLM, draft model",
    "vllm-ngram": "vLLM, n-grams",
}
"""Contenders by their name in `bench.contenders.contender`, and what they are called in reports."""
DRAFTING_PEERS = ("assisted", "llama-draft", "vllm-draft")
"""Of them, those that have use for a draft model."""
LLAMA_PEERS = ("llama", "llama-draft")
"""Those that run llama.cpp's server, which is the user's to install."""
VLLM_PEERS = ("vllm", "vllm-draft", "vllm-ngram")
"""Those that run vLLM's engine, in an environment which is the user's to make."""
ROUNDING_PEERS = ("engine", *LLAMA_PEERS)
"""Those that the bench has round weights as they load them."""
CROWD_PEERS = ("transformers", *LLAMA_PEERS, *VLLM_PEERS)
"""Those that take several texts at a time."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run."""

    models: Models
    """What is served and what guesses."""

    dtype: str
    """torch dtype of the weights, or auto."""

    quantize: str = "none"
    """What the target's weights are rounded to: none, int8, int4."""

    draft_quantize: str = "auto"
    """What the drafter's are: none, int8, int4, or auto for what turns out to be faster."""

    threads: int
    """CPU threads of each model's process; 0 shares the cores."""

    device: str = "auto"
    """Where models run, those of contenders, too: auto, cpu, cuda."""

    repetitions: int
    """Passes over the prompts."""

    max_tokens: int
    """Most tokens for each prompt."""

    temperature: float = 0.0
    """Of all texts; above 0 each prompt is drawn for with a seed of its own."""

    per_domain: int
    """Prompts of each domain; 0 takes all."""

    methods: tuple[str, ...]
    """Through the gateway, one prompt at a time; what the deployment lacks is left out. Empty
    takes all that it offers, and hybrids."""

    peers: tuple[str, ...]
    """Keys of `PEERS`."""

    llama_server: str = "llama-server"
    """llama.cpp's program: a path, or a name to be found on PATH."""

    vllm: str = "vllm"
    """vLLM's program, in the same way; the Python beside it runs the engine."""

    concurrency: tuple[int, ...]
    """So many at once, through the gateway and by the peers that can."""

    concurrent_methods: tuple[str, ...]
    """With these methods; empty takes all of `methods`."""

    unseen_prompts: bool = False
    """Whether several at once get prompts that nobody has asked yet, so that prefill counts;
    otherwise they get those of one at a time, most of whose tokens are cached."""

    round_trips_ms: tuple[float, ...]
    """Round trips added between verifier and drafter, in milliseconds; empty leaves that part
    out."""

    full: bool = False
    """Whether more is wanted than the short profile shows: see `bench.wanted`."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a profile runs where nothing else is said."""

    methods: tuple[str, ...]
    """As in `Settings`."""
    peers: tuple[str, ...]
    """As in `Settings`."""
    concurrency: tuple[int, ...]
    """As in `Settings`."""
    concurrent_methods: tuple[str, ...]
    """As in `Settings`."""
    round_trips_ms: tuple[float, ...]
    """As in `Settings`."""


SHORT = Profile(
    methods=METHODS,
    peers=("engine", "transformers"),
    concurrency=(8,),
    concurrent_methods=(PLAIN, DRAFT),
    round_trips_ms=(),
)
"""A few minutes on two cores."""

FULL = Profile(
    methods=(),
    peers=tuple(PEERS),
    concurrency=(1, 2, 4, 8, 16, 32),
    concurrent_methods=(),
    round_trips_ms=(0.0, 1.0, 2.0, 5.0, 10.0, 20.0),
)
"""Everything."""


def at_once(method: str, concurrency: int) -> str:
    """Return what a method with so many prompts at once is called."""
    return f"{method}, {concurrency} at once"
