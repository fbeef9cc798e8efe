"""What the gateway can be told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from common.config_checks import at_least
from common.errors import ConfigError
from common.service_config import ServiceConfig
from common.telemetry.config import TracingConfig
from common.tls_config import TlsConfig, check_exposure, check_store
from gateway.auth.config import AuthConfig
from gateway.discovery.target import parse_targets, remote

# Of what is given per second: a bucket that never fills would never say when to come back.
_LEAST_RATE = 0.001

# Half of what a worker may be silent for before it counts as lost.
_MOST_STATUS_INTERVAL_MS = 5000


@dataclass(frozen=True, kw_only=True)
class FailoverConfig:
    """How a generation goes on whose verifier is lost."""

    attempts: int = 6
    """Verifiers that may fail one generation in a row before any gives a token; 1 never retries."""

    wait_s: float = 10.0
    """Seconds a generation waits for a fitting verifier where none is there or, once it was begun,
    where all are full; then it ends with UNAVAILABLE."""

    retries_burst: int = 512
    """Retries of all generations together at once."""

    retries_per_s: float = 32.0
    """Retries of all generations together in a second, once the burst is used up; what is over
    it fails instead of multiplying the load."""

    def __post_init__(self) -> None:
        at_least(
            self, "failover.", attempts=1, wait_s=0, retries_burst=0, retries_per_s=_LEAST_RATE
        )


@dataclass(frozen=True, kw_only=True)
class GatewayConfig(ServiceConfig):
    """Configuration of one gateway process."""

    host: str = "127.0.0.1"
    """Address to listen on. Beyond this machine it needs tls and auth, or `insecure`."""

    port: int = 7070
    """Port to listen on; 0 takes a free one."""

    tracing: TracingConfig = field(default_factory=TracingConfig)
    """Traces of requests."""

    models: tuple[Path, ...] = ()
    """Model directories whose tokenizers and chat templates to load. A verifier is matched to one
    by tokenizer fingerprint, among several to that of the directory named like its model; without
    a match its model takes token ids only."""

    verifiers: tuple[str, ...]
    """Where the verifiers are: host:port for one of them; dns:host:port for one at each address
    of a name; kubernetes:[namespace/]service:port for the ready endpoints of a Service."""

    drafters: tuple[str, ...] = ()
    """Where the drafters are, in the same forms."""

    dns_interval_s: float = 5.0
    """Seconds between two look-ups of a dns: name."""

    kubeconfig: Path | None = None
    """File that says where the Kubernetes API is, for kubernetes: outside a pod; a pod asks its
    own cluster."""

    store_url: str | None = None
    """Redis or Valkey that remembers which verifier holds a session: rediss://host:port/0,
    unix:///path, or redis:// on this machine. Without it this process remembers by itself."""

    store_insecure: bool = False
    """Ask a store on another machine in plaintext, as redis://; `insecure` allows it, too."""

    session_ttl_s: float = 3600.0
    """Seconds a session is remembered after its last request."""

    max_concurrent: int = 256
    """Requests at a time that generate, tokenize or detokenize; one more is refused with
    RESOURCE_EXHAUSTED. One tenant alone leaves an eighth of them for others."""

    max_generation_s: float = 3600.0
    """Seconds that a generation may take where its client set no deadline or a longer one; then
    it ends with DEADLINE_EXCEEDED."""

    slow_reader_s: float = 60.0
    """Seconds that a client may leave its stream unread, once all it has room for is full; then
    the stream ends with RESOURCE_EXHAUSTED."""

    tls: TlsConfig = field(default_factory=TlsConfig)
    """Certificates that clients see; with ca they need one, too."""

    fleet_tls: TlsConfig = field(default_factory=TlsConfig)
    """Certificates for calls to verifiers and drafters; with ca, which any beyond this machine
    need."""

    auth: AuthConfig = field(default_factory=AuthConfig)
    """How callers are told apart."""

    insecure: bool = False
    """Listen beyond this machine though tls or auth is missing, and call workers there without
    fleet_tls, and a store as redis://."""

    failover: FailoverConfig = field(default_factory=FailoverConfig)
    """What happens where a verifier is lost half-way."""

    status_interval_ms: int = 250
    """Milliseconds between two load reports of a worker, from 50 to 5000: one that says nothing
    for 10 s is lost."""

    grace_s: float = 30.0
    """Seconds that running generations get after SIGTERM."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.verifiers:
            raise ConfigError("verifiers: at least one address is needed")
        for name in ("verifiers", "drafters"):
            parse_targets(name, getattr(self, name))
        at_least(
            self,
            session_ttl_s=1,
            max_concurrent=1,
            max_generation_s=1,
            slow_reader_s=0.1,
            status_interval_ms=50,
            dns_interval_s=0.1,
        )
        if self.status_interval_ms > _MOST_STATUS_INTERVAL_MS:
            raise ConfigError(
                f"status_interval_ms: must be at most {_MOST_STATUS_INTERVAL_MS}, "
                f"got {self.status_interval_ms}"
            )
        check_exposure(
            self.host,
            protected=self.tls.mutual or (self.tls.serves and self.auth.required),
            insecure=self.insecure,
            remedy="tls.cert, tls.key, and auth.tokens, auth.jwks or tls.ca",
        )
        check_store(self.store_url, insecure=self.insecure or self.store_insecure)
        if self.fleet_tls.cert is not None and self.fleet_tls.ca is None:
            raise ConfigError("fleet_tls.ca: is needed with cert and key, else nobody sees them")
        for name in ("verifiers", "drafters"):
            self._check_fleet(name)

    def _check_fleet(self, name: str) -> None:
        """Refuses to call workers elsewhere in plaintext, unless that is said."""
        if self.fleet_tls.ca is not None or self.insecure:
            return
        entries = getattr(self, name)
        for entry, target in zip(entries, parse_targets(name, entries), strict=True):
            if remote(target):
                raise ConfigError(
                    f"{name}: {entry} can be on another machine; set fleet_tls.ca, or say "
                    "--insecure where everybody on the way may read along"
                )
