"""The size of a pool on Kubernetes: its Deployment's scale subresource.

The chart labels every Deployment with its release, tier and pool; an autoscaler that owns a pool
would undo whatever is set by hand, so such a pool is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from common.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PacelineError,
    PermissionDenied,
    StartupError,
    Unavailable,
    first_line,
)
from fleet.snapshot import Tier
from gateway.discovery.kube_api import NAMESPACE_FILE

if TYPE_CHECKING:
    from kubernetes import client

_RELEASE = "app.kubernetes.io/instance"
_TIER = "app.kubernetes.io/component"
_POOL = "paceline/pool"

_TIMEOUT_S = 15.0
_MOST_PAUSE_S = 15
"""Before a call is tried once more, however long a server that is busy asks to be left alone."""


@dataclass(frozen=True, kw_only=True)
class PoolName:
    """Which pool."""

    tier: Tier
    """Its tier."""
    name: str
    """Its name in the chart's values."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads "verifier/h100".

        Raises:
            InvalidArgument: It is not of that form.
        """
        tier, _, name = text.partition("/")
        if tier not in list(Tier) or not name:
            raise InvalidArgument(
                "pool", f"must be TIER/NAME as in verifier/h100 or drafter/t4, got {text!r}"
            )
        return cls(tier=Tier(tier), name=name)

    def __str__(self) -> str:
        return f"{self.tier}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """A change that was made."""

    namespace: str
    """Where."""
    deployment: str
    """The Deployment's name."""
    before: int
    """Replicas it had."""
    after: int
    """Replicas it has now been told to have."""


class Deployments:
    """The Deployments of one namespace; a context manager.

    Args:
        kubeconfig: File that says where the API server is; None takes KUBECONFIG, then
            ~/.kube/config, then the cluster that this process runs in.
        context: Context of that file; None is its current one.
        namespace: None is the context's, or the pod's own.

    Raises:
        StartupError: The `kubernetes` package is missing, or there is no usable configuration.
    """

    def __init__(
        self,
        kubeconfig: Path | None = None,
        context: str | None = None,
        namespace: str | None = None,
    ) -> None:
        configuration, own = _configuration(kubeconfig, context)
        from kubernetes import client

        self.namespace = namespace or own
        self._client = client.ApiClient(configuration)
        self._apps = client.AppsV1Api(self._client)
        self._autoscaling = client.AutoscalingV2Api(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client.close()

    def scale(self, pool: PoolName, replicas: int, release: str | None = None) -> Scaled:
        """Sets how many replicas a pool has.

        Args:
            pool: The pool.
            replicas: How many.
            release: The Helm release; may be left out where only one has such a pool.

        Raises:
            NotFound: No release has it here.
            InvalidArgument: Several have.
            FailedPrecondition: An autoscaler owns it.
            PermissionDenied: The API server refuses; says which right is missing.
            Unavailable: It does not answer.
        """
        name = self._deployment(pool, release)
        self._require_no_owner(pool, name)
        before = self._asked(
            ("get", "deployments/scale"),
            self._apps.read_namespaced_deployment_scale,
            name,
        )
        after = self._asked(
            ("patch", "deployments/scale"),
            self._apps.patch_namespaced_deployment_scale,
            name,
            body={"spec": {"replicas": replicas}},
            _content_type="application/merge-patch+json",
        )
        return Scaled(
            namespace=self.namespace,
            deployment=name,
            before=_replicas(before),
            after=_replicas(after),
        )

    def _deployment(self, pool: PoolName, release: str | None) -> str:
        terms = {_TIER: pool.tier.value, _POOL: pool.name}
        terms |= {_RELEASE: release} if release else {}
        found = self._asked(
            ("list", "deployments"),
            self._apps.list_namespaced_deployment,
            label_selector=",".join(f"{key}={value}" for key, value in terms.items()),
        )["items"]
        if not found:
            whose = f" of release {release}" if release else ""
            raise NotFound(
                f"pool: no Deployment{whose} in namespace {self.namespace} is labelled as {pool}; "
                "give --namespace, or see `paceline fleet status` for the pools there are"
            )
        if len(found) > 1:
            releases = sorted(each["metadata"]["labels"].get(_RELEASE, "?") for each in found)
            raise InvalidArgument(
                "release", f"must be given: {', '.join(releases)} each have a pool {pool}"
            )
        return str(found[0]["metadata"]["name"])

    def _require_no_owner(self, pool: PoolName, deployment: str) -> None:
        scalers = self._asked(
            ("list", "horizontalpodautoscalers"),
            self._autoscaling.list_namespaced_horizontal_pod_autoscaler,
        )["items"]
        for scaler in scalers:
            target = scaler["spec"]["scaleTargetRef"]
            if (target["kind"], target["name"]) == ("Deployment", deployment):
                least, most = scaler["spec"].get("minReplicas", 1), scaler["spec"]["maxReplicas"]
                raise FailedPrecondition(
                    f"{pool} is scaled by {_owner(scaler)}, from {least} to {most}, which would "
                    f"undo this; change {pool.tier}.pools.{pool.name}.autoscaling.min and max in "
                    "the chart's values"
                )

    def _asked(
        self, right: tuple[str, str], call: Callable[..., Any], *arguments: str, **options: Any
    ) -> Any:
        """Calls the API server; its answer as it stands: the client's models refuse newer ones.

        Args:
            right: Verb and resource, as a Role names them.
            call: A method of the client.
            *arguments: Before the namespace.
            **options: After it.
        """
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        options |= {"_preload_content": False, "_request_timeout": _TIMEOUT_S}
        try:
            return json.loads(call(*arguments, self.namespace, **options).data)
        except ApiException as error:
            raise self._refusal(int(error.status or 0), _message(error), right) from error
        except HTTPError as error:
            raise Unavailable(f"the Kubernetes API does not answer: {first_line(error)}") from error
        except ValueError as error:
            problem = f"not an answer of the Kubernetes API: {first_line(error)}"
            raise Unavailable(problem) from error

    def _refusal(self, status: int, message: str, right: tuple[str, str]) -> PacelineError:
        if status == 401:
            return PermissionDenied(
                f"the Kubernetes API does not know these credentials: {message}"
            )
        if status == 403:
            return PermissionDenied(
                f"the Kubernetes API refuses: {message}. You lack the right to {right[0]} "
                f"{right[1]}; scaling needs a Role in namespace {self.namespace} with list on "
                "deployments and horizontalpodautoscalers, and get and patch on deployments/scale"
            )
        if status == 404:
            return NotFound(f"the Kubernetes API does not have it: {message}")
        return Unavailable(f"the Kubernetes API answered {status}: {message}")


def _replicas(scale: Mapping[str, Any]) -> int:
    # Zero is left out.
    return int(scale["spec"].get("replicas", 0))


def _owner(scaler: Mapping[str, Any]) -> str:
    """Names what an autoscaler belongs to: KEDA scales by one that it makes itself."""
    for owner in scaler["metadata"].get("ownerReferences", ()):
        if owner["kind"] == "ScaledObject":
            return f"the ScaledObject {owner['name']}"
    return f"the HorizontalPodAutoscaler {scaler['metadata']['name']}"


def _configuration(
    kubeconfig: Path | None, context: str | None
) -> tuple[client.Configuration, str]:
    """Returns where the API server is, and the namespace that is meant where none is named."""
    try:
        from kubernetes import client, config
        from urllib3 import Retry
    except ImportError:
        raise StartupError(
            "scale needs the Kubernetes client: pip install 'paceline-server[kubernetes]'"
        ) from None
    configuration = client.Configuration()
    configuration.retries = Retry(1, retry_after_max=_MOST_PAUSE_S)
    file = str(kubeconfig) if kubeconfig else None
    try:
        config.load_kube_config(file, context, configuration)
        return configuration, _namespace(config, file, context)
    except Exception as error:  # the loader trips over a broken file in many ways
        if kubeconfig or context or not NAMESPACE_FILE.exists():
            raise StartupError(f"kubeconfig: cannot be used: {first_line(error)}") from error
    config.load_incluster_config(configuration)
    return configuration, NAMESPACE_FILE.read_text(encoding="utf-8").strip()


def _namespace(config: Any, file: str | None, context: str | None) -> str:
    contexts, active = config.list_kube_config_contexts(file)
    chosen = next((each for each in contexts if each["name"] == context), active)
    return str(chosen.get("context", {}).get("namespace") or "default")


def _message(error: client.ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
