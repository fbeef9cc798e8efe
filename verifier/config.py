"""Configuration of the verifier process."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.worker_config import WorkerConfig, at_least


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes of the engine."""

    kv_bytes: int = 256 << 20
    """Most memory the key/value cache may take, in bytes."""
    block_tokens: int = 16
    """Positions in one cache block, in tokens."""
    max_len_tokens: int = 0
    """Most tokens of prompt and output together; 0 takes the model's limit."""
    max_batch_tokens: int = 256
    """Most rows of one engine step, in tokens: draft nodes and prefill chunks together."""
    max_running: int = 32
    """Most sequences in the batch."""
    max_waiting: int = 128
    """Most sequences waiting for admission; one more is refused with RESOURCE_EXHAUSTED."""
    draft_tokens: int = 8
    """Longest draft where a request leaves the length to the verifier, in tokens."""
    max_draft_tokens: int = 16
    """Longest draft a request may ask for, in tokens."""

    def __post_init__(self) -> None:
        at_least(self, "engine.", block_tokens=2, max_len_tokens=0, max_batch_tokens=1)
        at_least(self, "engine.", max_running=1, max_waiting=0, draft_tokens=1, max_draft_tokens=1)


@dataclass(frozen=True, kw_only=True)
class VerifierConfig(WorkerConfig):
    """What `python -m verifier` takes."""

    port: int = 7071
    """Port to listen on; 0 takes a free one."""
    grace_s: float = 30.0
    """Time running requests get when the process is told to stop, in seconds."""
    stream_interval_ms: float = 20.0
    """Least time between two messages of one stream, in milliseconds; tokens committed meanwhile
    travel together, which leaves more of the processor to the model."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Sizes of the engine."""
