"""Configuration of the drafter process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from common.config_checks import at_least, check_ports
from common.worker_config import WorkerConfig

LEAST_KV_BYTES = 128 << 20
"""Of the key/value cache, where `engine.kv_bytes` is 0; on a CPU all of it."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes of the engine."""

    kv_bytes: int = 0
    """Most memory the key/value cache may take, in bytes. 0 for 128 MiB on a CPU, and on a GPU for
    what the weights leave of `gpu_memory_share`, less 1 GiB for passes, but 128 MiB at least."""
    block_tokens: int = 16
    """Positions in one cache block, in tokens."""
    max_batch_tokens: int = 256
    """Most rows of one engine step, in tokens."""
    max_sessions: int = 256
    """Most sessions mirrored; beyond, the least recently used one is dropped."""
    context_tokens: int = 0
    """How far back the model looks, in tokens: of a longer text it has at least the last half of so
    many, and a session's committed tokens take no more of the cache. 0 for as far as the model and
    half of the cache allow. Models that were trained on short texts are right more often with no
    more than those had, and others less often."""
    max_draft_tokens: int = 32
    """Longest branch drafted, in tokens; a verifier that asks for more gets this many."""
    fanout: int = 3
    """Most bonus guesses drafted for, for each accepted length, beside the draft model's own next
    choice after all of a draft; 0 drafts nothing ahead."""
    scratch_tokens: int = 160
    """Most positions of the cache for each session's drafted tokens; where half of the cache is
    taken, as many as one branch takes."""

    @property
    def branch_tokens(self) -> int:
        """Positions of the cache for one branch, its bonus and one more."""
        return self.max_draft_tokens + 2

    def __post_init__(self) -> None:
        at_least(self, "engine.", fanout=0, scratch_tokens=self.branch_tokens)
        at_least(self, "engine.", kv_bytes=0, block_tokens=2, max_batch_tokens=1, max_sessions=1)
        at_least(self, "engine.", max_draft_tokens=1, context_tokens=0)


@dataclass(frozen=True, kw_only=True)
class DrafterConfig(WorkerConfig):
    """What `python -m drafter` takes."""

    port: int = 7072
    """Port to listen on; 0 takes a free one."""
    quantize: Literal["auto", "none", "int8", "int4"] = "auto"
    """What the weights of linear layers are rounded to as they are loaded; the text stays what it
    is. auto tries both on a CPU, and takes int8 where it is faster and drafts hardly differ. Where
    the compiled decoder runs the model, int8 is beside bfloat16, whatever `dtype` says."""
    grace_s: float = 5.0
    """Time sessions get to end when the process is told to stop, in seconds."""
    max_streams: int = 64
    """Most verifiers served at once; one more is refused with RESOURCE_EXHAUSTED."""
    lanes: bool = True
    """Offer verifiers of the same machine and user a UNIX socket, in the directory for temporary
    files, for what they and this drafter tell each other: it takes a fifth of gRPC's time. What is
    between a verifier and this drafter, such as a proxy, is then passed by."""
    lane_port: int | None = None
    """Port at which verifiers of other machines may connect for the same, on `host`, within TLS
    where the service has it; 0 takes a free one, and none listens at none. Who cannot connect goes
    on through gRPC: at once where it is refused, after a second for each address where a firewall
    says nothing, and after four where a proxy takes the connection and says nothing."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Sizes of the engine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, max_streams=1)
        check_ports(
            port=self.port,
            health_port=self.health_port,
            metrics_port=self.metrics_port,
            lane_port=self.lane_port,
        )
