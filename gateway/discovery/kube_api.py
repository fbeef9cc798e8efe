"""The two calls to the Kubernetes API server that discovery makes, and what can go wrong with them.

Owns credentials, timeouts and the framing of the watch stream; what the objects mean is
`endpoint_slices`' business, what to do about errors `kubernetes`'.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import StartupError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kubernetes.aio import client

log = logging.getLogger(__name__)

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where a pod finds its own namespace."""

_LIST_TIMEOUT_S = 30.0

# Beyond the end that the server was asked to set: then the connection is dead, not quiet.
_WATCH_MARGIN_S = 10.0

_REASON_CHARS = 300

Event = tuple[str, Mapping[str, Any]]
"""Kind of a change and its object: "ADDED", "MODIFIED", "DELETED" or "BOOKMARK"."""


class KubeError(Exception):
    """The API server did not do what it was asked; the message says why."""


class CredentialsError(KubeError):
    """It does not know us: what we show ran out, or was never its."""


class ForbiddenError(KubeError):
    """It knows us and refuses: a matter of RBAC."""


class GoneError(KubeError):
    """The version to go on from is too old: list again."""


class EndpointSliceApi:
    """Lists and watches EndpointSlices of one namespace.

    Args:
        namespace: The namespace.
        selector: Label selector of the slices.
        configuration: Address and credentials, from `load_configuration`.
    """

    def __init__(self, namespace: str, selector: str, configuration: client.Configuration) -> None:
        from kubernetes.aio import client

        self._namespace = namespace
        self._selector = selector
        self._client = client.ApiClient(configuration)
        self._api = client.DiscoveryV1Api(self._client)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def list(self) -> tuple[list[Mapping[str, Any]], str]:
        """Returns all slices, and the version to watch from.

        Raises:
            KubeError: No list came.
        """
        with _mapped():
            async with await self._call(_request_timeout=_LIST_TIMEOUT_S) as response:
                body = await response.read()
                _check(response.status, body)
            found = json.loads(body)
            return found.get("items") or [], found["metadata"]["resourceVersion"]

    async def watch(self, version: str, watch_s: int) -> AsyncGenerator[Event, None]:
        """Streams what changed since a version; ends when the server ends it.

        Args:
            version: From a list, or of the last event.
            watch_s: Seconds after which the server is to end it.

        Raises:
            GoneError: The version is too old.
            KubeError: The stream failed.
        """
        with _mapped():
            call = self._call(
                watch=True,
                allow_watch_bookmarks=True,
                resource_version=version,
                timeout_seconds=watch_s,
                _request_timeout=watch_s + _WATCH_MARGIN_S,
            )
            async with await call as response:
                if response.status != 200:
                    _check(response.status, await response.read())
                # By hand: the client's own reader loses an event that is longer than its buffer.
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        if line.strip():
                            yield _event(json.loads(line))

    async def _call(self, **options: Any) -> Any:
        # Without the client's models, which refuse what a newer server sends.
        call = self._api.list_namespaced_endpoint_slice_without_preload_content
        return await call(self._namespace, label_selector=self._selector, **options)


async def load_configuration(kubeconfig: Path | None) -> client.Configuration:
    """Finds the API server: that of the pod's cluster, or of a kubeconfig file.

    The token of a pod is read again when it is renewed; a plugin of a kubeconfig is asked for
    another one when its own runs out.

    Raises:
        StartupError: The `kubernetes` package is missing, or there is no usable configuration.
    """
    try:
        from kubernetes.aio import client, config
    except ImportError:
        raise StartupError(
            "kubernetes:… needs the client: pip install 'paceline-server[kubernetes]'"
        ) from None
    configuration = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(configuration)
        else:
            loader = await config.load_kube_config(
                str(kubeconfig), client_configuration=configuration
            )
            if hasattr(loader, "exec_plugin_expiry"):
                configuration.refresh_api_key_hook = partial(_renew, loader)
    except Exception as error:  # the loader trips over a broken file in many ways
        what = f"{kubeconfig} cannot be used" if kubeconfig else "needed outside a pod"
        raise StartupError(f"kubeconfig: {what}: {first_line(error)}") from error
    return configuration


async def _renew(loader: Any, configuration: client.Configuration) -> None:
    """Has the plugin of a kubeconfig make another token, where the last one ran out."""
    async with asyncio.timeout(_LIST_TIMEOUT_S):  # no request's own time covers this
        await loader.load_from_exec_plugin()
    configuration.api_key["BearerToken"] = loader.token


def own_namespace() -> str:
    """Returns the namespace of this pod, "default" outside one."""
    try:
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return "default"


def _event(line: Mapping[str, Any]) -> Event:
    kind, changed = line["type"], line["object"]
    if kind == "ERROR":
        raise _error(int(changed.get("code") or 0), changed.get("message") or "")
    return kind, changed


def _check(status: int, body: bytes) -> None:
    if status == 200:
        return
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = body.decode("utf-8", "replace")
    raise _error(status, str(message))


def _error(code: int, message: str) -> KubeError:
    kinds = {401: CredentialsError, 403: ForbiddenError, 410: GoneError}
    return kinds.get(code, KubeError)(f"{code} {message}"[:_REASON_CHARS])


@contextmanager
def _mapped() -> Iterator[None]:
    """Turns what the transport raises, or nonsense from the server, into our own error."""
    from aiohttp import ClientError

    try:
        yield
    except (ClientError, OSError, TimeoutError) as error:
        raise KubeError(first_line(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KubeError(f"not an answer of the Kubernetes API: {first_line(error)}") from error
