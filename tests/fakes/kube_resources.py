"""What the fake API server serves: its resources, as discovery tells them to kubectl."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One kind of object."""

    group: str  # empty: the core group
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """Path of the group's version."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    @property
    def collection(self) -> str:
        """Route of all objects of a namespace, or of the cluster."""
        within = "/namespaces/{namespace}" if self.namespaced else ""
        return f"{self.root}{within}/{self.plural}"


SLICES = Resource(
    group="discovery.k8s.io", version="v1", plural="endpointslices", kind="EndpointSlice"
)
DEPLOYMENTS = Resource(
    group="apps", version="v1", plural="deployments", kind="Deployment", singular="deployment"
)
SCALERS = Resource(
    group="autoscaling",
    version="v2",
    plural="horizontalpodautoscalers",
    kind="HorizontalPodAutoscaler",
)
BUDGETS = Resource(
    group="policy", version="v1", plural="poddisruptionbudgets", kind="PodDisruptionBudget"
)
PODS = Resource(group="", version="v1", plural="pods", kind="Pod", singular="pod")
NODES = Resource(
    group="", version="v1", plural="nodes", kind="Node", singular="node", namespaced=False
)

RESOURCES = (SLICES, DEPLOYMENTS, SCALERS, BUDGETS, PODS, NODES)

SCALE, EVICTION = "scale", "eviction"

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]

# Group, version and kind of what a subresource takes.
_SUBRESOURCES = {
    (DEPLOYMENTS.plural, SCALE): ("autoscaling", "v1", "Scale", ["get", "patch", "update"]),
    (PODS.plural, EVICTION): ("policy", "v1", "Eviction", ["create"]),
}


def groups() -> Object:
    """What /apis answers."""
    found = []
    for name in sorted({each.group for each in RESOURCES if each.group}):
        versions = sorted({each.version for each in RESOURCES if each.group == name})
        listed = [{"groupVersion": f"{name}/{each}", "version": each} for each in versions]
        found.append({"name": name, "versions": listed, "preferredVersion": listed[-1]})
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


def resources(members: Iterable[Resource]) -> Object:
    """What the root of a group's version answers."""
    listed: list[Object] = []
    of = list(members)
    for each in of:
        listed.append(
            {
                "name": each.plural,
                "singularName": each.singular,
                "namespaced": each.namespaced,
                "kind": each.kind,
                "verbs": _VERBS,
            }
        )
        for (plural, name), (group, version, kind, verbs) in _SUBRESOURCES.items():
            if plural == each.plural:
                entry = {"name": f"{plural}/{name}", "singularName": "", "namespaced": True}
                what = {"group": group, "version": version, "kind": kind, "verbs": verbs}
                listed.append(entry | what)
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": of[0].api_version,
        "resources": listed,
    }


def status(code: int, reason: str, message: str) -> Object:
    """A refusal's body."""
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def merged(old: Any, patch: Any) -> Any:
    """Applies a JSON merge patch (RFC 7386); for maps a strategic one is the same."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def scale_of(deployment: Object) -> Object:
    """A Deployment's scale subresource."""
    metadata = deployment["metadata"]
    kept = ("name", "namespace", "resourceVersion")
    labels = deployment["spec"].get("selector", {}).get("matchLabels", {})
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {key: metadata[key] for key in kept},
        "spec": {"replicas": deployment["spec"].get("replicas", 1)},
        "status": {
            "replicas": deployment.get("status", {}).get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in labels.items()),
        },
    }


def selects(selector: Object, item: Object) -> bool:
    """Whether `matchLabels` choose an object."""
    labels = item["metadata"].get("labels") or {}
    wanted = selector.get("matchLabels", {})
    return bool(wanted) and all(labels.get(key) == value for key, value in wanted.items())
