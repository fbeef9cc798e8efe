"""Configuration of the verifier process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from common.config_checks import at_least, shares
from common.errors import ConfigError
from common.store.pool_config import PoolConfig
from common.telemetry.config import TracingConfig
from common.tls_config import check_store
from common.worker_config import WorkerConfig
from verifier.pool.config import LookaheadConfig

LEAST_KV_BYTES = 256 << 20
"""Of the key/value cache, where `engine.kv_bytes` is 0; on a CPU all of it."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes of the engine."""

    kv_bytes: int = 0
    """Most memory the key/value cache may take, in bytes. 0 for 256 MiB on a CPU, and on a GPU for
    what the weights leave of `gpu_memory_share`, less 1 GiB for passes, but 256 MiB at least."""
    block_tokens: int = 16
    """Positions in one cache block, in tokens."""
    max_len_tokens: int = 0
    """Most tokens of prompt and output together; 0 takes the model's limit."""
    max_batch_tokens: int = 256
    """Most rows of one engine step, in tokens: draft nodes and prefill chunks together; at least
    `max_running`, for each sequence takes one."""
    max_running: int = 32
    """Most sequences in the batch."""
    max_waiting: int = 128
    """Most sequences waiting for admission; one more is refused with RESOURCE_EXHAUSTED."""
    draft_tokens: int = 8
    """Longest draft where a request leaves the length to the verifier, in tokens."""
    draft_fanout: int = 3
    """Most bonus tokens a drafter drafts for ahead of a round's outcome, for each accepted length.
    0 has it wait for the outcome, as it does where passes take most processors that it may have."""
    tree_nodes: int = 24
    """Most nodes of a tree that heads, pools or look-ups propose, in tokens."""
    medusa_tree: Literal["dynamic", "static"] = "dynamic"
    """Grow Medusa's tree in each round by the heads' confidence, or use the one that came with
    them."""
    typical_threshold: float = 0.09
    """Probability that typical acceptance always keeps, in (0, 1]."""
    typical_alpha: float = 0.3
    """Share of exp(-entropy) that typical acceptance keeps, in (0, 1]."""
    max_draft_tokens: int = 16
    """Longest draft a request may ask for, in tokens."""

    def __post_init__(self) -> None:
        at_least(self, "engine.", kv_bytes=0, block_tokens=2, max_len_tokens=0, max_batch_tokens=1)
        at_least(self, "engine.", max_running=1, max_waiting=0, draft_tokens=1, max_draft_tokens=1)
        at_least(self, "engine.", tree_nodes=1, draft_fanout=0)
        if self.max_batch_tokens < self.max_running:
            least = f"must be at least engine.max_running ({self.max_running})"
            raise ConfigError(f"engine.max_batch_tokens: {least}, got {self.max_batch_tokens}")
        if self.draft_tokens > self.max_draft_tokens:
            most = f"at most engine.max_draft_tokens ({self.max_draft_tokens})"
            raise ConfigError(f"engine.draft_tokens: must be {most}, got {self.draft_tokens}")
        shares(self, "typical_threshold", "typical_alpha", prefix="engine.")


@dataclass(frozen=True, kw_only=True)
class VerifierConfig(WorkerConfig):
    """What `python -m verifier` takes."""

    port: int = 7071
    """Port to listen on; 0 takes a free one."""
    quantize: Literal["none", "int8", "int4"] = "none"
    """What the weights of linear layers are rounded to as they are loaded: int8 takes half the
    memory of bfloat16, int4 a quarter (but for the output layer, which stays as it is). A quantised
    target is another target, with a text of its own."""
    grace_s: float = 30.0
    """Time running requests get when the process is told to stop, in seconds."""
    session_ttl_s: float = 3600.0
    """Time a session's cache is kept for its next turn, where nothing else needs the memory, in
    seconds."""
    stream_interval_ms: float = 20.0
    """Time between two messages of one stream, in milliseconds, twice that from 8 streams on, three
    times from 12 and four times from 16; tokens committed meanwhile travel together, and messages
    of all streams go at once, which leaves more of the processor to the model. For half that time
    passes of several requests for which nothing is drafted are one call of the compiled decoder,
    and one that ends in it hears so at its end. With 0 each token goes at once."""
    store_url: str | None = None
    """Redis or Valkey through which verifiers share n-grams: rediss://host:port/0, unix:///path,
    or redis:// on this machine. Without it this process shares them among its own requests."""
    store_insecure: bool = False
    """Ask a store on another machine in plaintext, as redis://; `insecure` allows it, too."""
    share_ngrams: bool = True
    """Whether requests of one tenant learn from each other's n-grams."""
    medusa: str = ""
    """Directory of Medusa heads made for the model; empty serves without."""
    eagle: str = ""
    """Directory of an EAGLE-3 head made for the model, or of a Gemma 4 assistant; what `model` is
    where that brings multi-token prediction along; empty serves without."""
    tracing: TracingConfig = field(default_factory=TracingConfig)
    """Traces of requests."""
    lookahead: LookaheadConfig = field(default_factory=LookaheadConfig)
    """Sizes of lookahead decoding."""
    pools: PoolConfig = field(default_factory=PoolConfig)
    """Sizes of shared n-gram pools."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Sizes of the engine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, session_ttl_s=0, stream_interval_ms=0)
        check_store(self.store_url, insecure=self.insecure or self.store_insecure)
