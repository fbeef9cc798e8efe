"""What every process that runs a model can be told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from common.config_checks import at_least, shares
from common.service_config import ServiceConfig
from common.tls_config import TlsConfig, check_exposure


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(ServiceConfig):
    """Configuration that verifiers and drafters share."""

    model: str
    """Model: a directory in Hugging Face form, or a hub repository."""
    name: str = ""
    """Name to go by; empty takes the directory's name."""
    pool: str = ""
    """Pool it belongs to, for example "h100": workers of one pool are scaled together."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of the weights; auto takes what the files say."""
    device: str = "auto"
    """torch device: auto, cpu, cuda, cuda:1, …"""
    kernels: Literal["auto", "torch"] = "auto"
    """What passes run through: auto takes this project's own kernels where they know the model and
    the device, torch leaves them out. The kernels decide the bits of a text."""
    gpu_memory_share: float = 0.9
    """Part of a GPU's memory, in (0, 1], that the process may fill with weights and, where
    `engine.kv_bytes` is 0, with cache, as far as that much is free. Parts of processes that start
    on one GPU together add up to 0.9 at most: `paceline up` gives the verifier 0.75 and the drafter
    0.15."""
    threads: int = 0
    """CPU threads of one forward pass; 0 takes torch's default, and no more than there are
    processors for the process: by its container's limit, too."""
    most_threads: int = 0
    """CPU threads of a pass of many rows (prompts, several requests, large trees), and of every
    pass where one of a row is milliseconds shorter with them, as of large models; 0 for no more
    than of others. For models of the compiled decoder."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """Certificates, for the listener and for calls to other workers; with cert, key and ca both
    sides of every call know each other."""
    stall_s: float = 300.0
    """Time after which a pass that has not come back, as where a driver hangs, is given up and the
    process ends with an error, in seconds; 0 waits for ever."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, threads=0, most_threads=0, stall_s=0)
        shares(self, "gpu_memory_share")
        check_exposure(
            self.host,
            protected=self.tls.mutual,
            insecure=self.insecure,
            remedy="tls.cert, tls.key and tls.ca",
        )
