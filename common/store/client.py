"""How the store is reached: a client for threads, one for an event loop, and what ails a store.

One server, or what looks like one: neither Redis Cluster nor Sentinel is followed anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common.errors import ConfigError
from common.tls_config import check_store

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

NAMESPACE = "paceline"
"""Begins every key."""


def thread_client(url: str, *, timeout_s: float) -> Redis:
    """A client for threads; connects when it is first used.

    Args:
        url: redis://host:port/db, rediss:// or unix:///path.
        timeout_s: How long a connection may take, and a call.

    Raises:
        ConfigError: The URL is none that is understood.
    """
    from redis import ConnectionPool, Redis  # lazily: only deployments with a store need it
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    pool = _pool(ConnectionPool, url, timeout_s, retry=Retry(NoBackoff(), 0))
    return Redis.from_pool(pool)


def loop_client(url: str, *, timeout_s: float, connections: int, wait_s: float) -> AsyncRedis:
    """A client for an event loop; connects when it is first used.

    Args:
        url: redis://host:port/db, rediss:// or unix:///path.
        timeout_s: How long a connection may take, and a call.
        connections: How many there are at most.
        wait_s: How long a call waits until one is free.

    Raises:
        ConfigError: The URL is none that is understood, or its certificates cannot be read.
    """
    from redis.asyncio import BlockingConnectionPool, Redis, SSLConnection
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    pool = _pool(
        BlockingConnectionPool,
        url,
        timeout_s,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
        max_connections=connections,
        timeout=wait_s,
    )
    if issubclass(pool.connection_class, SSLConnection):
        _share_tls(pool)
    return Redis.from_pool(pool)


def reason(error: Exception) -> str:
    """What keeps a store from use, by the error of a call."""
    from redis.exceptions import AskError

    if isinstance(error, AskError):  # MovedError is one
        return "it is a Redis Cluster; name a store that is none, or a proxy"
    return str(error) or type(error).__name__


def _pool(kind: Any, url: str, timeout_s: float, **options: Any) -> Any:
    """A pool of connections; refuses a URL for which none of them could be made."""
    from redis.exceptions import RedisError

    check_store(url, insecure=True)
    try:
        pool = kind.from_url(
            url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, **options
        )
        pool.connection_class(**pool.connection_kwargs)  # knows all options of the URL, or raises
    except (TypeError, ValueError, RedisError) as error:
        raise ConfigError(f"store_url: {error}") from None
    return pool


def _share_tls(pool: Any) -> None:
    """Has all connections share one TLS context, made now: up to 0.1 s on the event loop for it."""
    from redis.asyncio import SSLConnection

    shared = pool.connection_class(**pool.connection_kwargs).ssl_context
    try:
        shared.get()
    except OSError as error:
        raise ConfigError(f"store_url: cannot read its certificates: {error}") from None

    class Connection(SSLConnection):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.ssl_context = shared

    pool.connection_class = Connection
