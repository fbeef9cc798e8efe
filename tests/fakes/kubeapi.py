"""A Kubernetes API server for tests: real HTTP on loopback, objects in memory, faults on demand.

Serves list, watch, get, create, replace, patch and delete of the resources in `kube_resources`,
with resource versions, label selectors, bookmarks, compaction (410 Gone), bearer tokens and
refusals, the scale of Deployments and the eviction of pods under a disruption budget, and enough
of API discovery for the real kubectl, by which its faithfulness is tested. What a cluster does
beyond that it does not do: no controller starts or replaces a pod, and an evicted one is gone at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.fakes.kube_resources import (
    BUDGETS,
    DEPLOYMENTS,
    EVICTION,
    PODS,
    RESOURCES,
    SCALE,
    SLICES,
    Object,
    Resource,
    groups,
    merged,
    resources,
    scale_of,
    selects,
    status,
)

# Of a body that says what is to be different; one that lists operations is not understood.
_PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json")


class KubeApi:
    """The server; make one with `serving`.

    Attributes:
        url: Where it listens.
        requests: Verb and query of every call so far: ("list", {...}), ("watch", {...}) for
            EndpointSlices, ("patch deployments/scale", {...}) for others.
        token: The bearer token it wants; None lets everybody in.
        forbidden: Verbs, worded as in `requests`, that are answered with 403.
        failure: Status that every call is answered with; None for none.
        retry_after_s: How long it then asks to be left alone; None does not ask.
        gone_by_status: Whether a watch from too old a version is answered with status 410, not
            with an ERROR event. Clusters do both.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        self.token: str | None = None
        self.forbidden: set[str] = set()
        self.failure: int | None = None
        self.retry_after_s: int | None = None
        self.gone_by_status = False
        self._objects: dict[tuple[str, str, str], Object] = {}  # plural, namespace, name
        self._history: list[tuple[int, str, str, Object]] = []
        self._revision = 100
        self._compacted = 100
        self._watches: set[_Watch] = set()
        self._changed = asyncio.Condition()

    # What a test does to the cluster.

    def apply(
        self, item: Object, namespace: str = "default", resource: Resource = SLICES
    ) -> Object:
        """Creates or replaces an object."""
        key = _identity(resource, namespace, item["metadata"]["name"])
        kind = "MODIFIED" if key in self._objects else "ADDED"
        stored = copy.deepcopy(item)
        stored |= {"apiVersion": resource.api_version, "kind": resource.kind}
        if resource.namespaced:
            stored["metadata"]["namespace"] = namespace
        self._objects[key] = stored
        self._commit(resource, kind, stored)
        return stored

    def delete(self, name: str, namespace: str = "default", resource: Resource = SLICES) -> Object:
        """Deletes an object."""
        gone = self._objects.pop(_identity(resource, namespace, name))
        self._commit(resource, "DELETED", gone)
        return gone

    def get(self, resource: Resource, name: str, namespace: str = "default") -> Object | None:
        """Returns an object, or None where there is no such one."""
        return self._objects.get(_identity(resource, namespace, name))

    def compact(self) -> None:
        """Forgets all history: a watch from an older version is too old."""
        self._compacted = self._revision
        self._history.clear()

    def bookmark(self) -> None:
        """Tells every watch the present version, which moves on by itself in a cluster."""
        self._revision += 1
        for watch in self._watches:
            kind = watch.resource.kind
            watch.put("BOOKMARK", {"kind": kind, "metadata": {"resourceVersion": self._text()}})

    def end_watches(self) -> None:
        """Ends every watch in good order, as after its time."""
        for watch in self._watches:
            watch.end()

    def drop_watches(self) -> None:
        """Cuts every watch's connection, in the middle of a line."""
        for watch in self._watches:
            watch.cut()

    def expire_watches(self) -> None:
        """Ends every watch with an ERROR event: 410 Gone."""
        for watch in self._watches:
            watch.put("ERROR", status(410, "Expired", "too old resource version"))
            watch.end()

    async def until(self, verb: str, count: int) -> None:
        """Waits until so many calls of a verb have come; a watch counts once it is followed."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(
                lambda: sum(each == verb for each, _ in self.requests) >= count
            )

    # What clients see.

    def application(self) -> web.Application:
        """The server's routes."""
        app = web.Application()
        self._route(app, "GET", "/version", _answer({"major": "1", "minor": "33"}))
        self._route(app, "GET", "/api", _answer({"kind": "APIVersions", "versions": ["v1"]}))
        self._route(app, "GET", "/apis", _answer(groups()))
        for root in {each.root for each in RESOURCES}:
            members = [each for each in RESOURCES if each.root == root]
            self._route(app, "GET", root, _answer(resources(members)))
        for resource in RESOURCES:
            self._add(app, resource)
        one = f"{DEPLOYMENTS.collection}/{{name}}/{SCALE}"
        self._route(app, "GET", one, self._get_scale, DEPLOYMENTS, SCALE)
        self._route(app, "PATCH", one, self._set_scale, DEPLOYMENTS, SCALE)
        self._route(app, "PUT", one, self._set_scale, DEPLOYMENTS, SCALE)
        evictions = f"{PODS.collection}/{{name}}/{EVICTION}"
        self._route(app, "POST", evictions, self._evict, PODS, EVICTION)
        return app

    def _add(self, app: web.Application, resource: Resource) -> None:
        one = f"{resource.collection}/{{name}}"
        self._route(app, "GET", resource.collection, self._list_or_watch, resource)
        if resource.namespaced:
            everywhere = f"{resource.root}/{resource.plural}"
            self._route(app, "GET", everywhere, self._list_or_watch, resource)
        self._route(app, "POST", resource.collection, self._create, resource)
        self._route(app, "GET", one, self._get, resource)
        self._route(app, "PUT", one, self._replace, resource)
        self._route(app, "PATCH", one, self._patch, resource)
        self._route(app, "DELETE", one, self._delete, resource)

    def _route(
        self,
        app: web.Application,
        method: str,
        path: str,
        handler: Any,
        resource: Resource | None = None,
        subresource: str = "",
    ) -> None:
        async def guarded(request: web.Request) -> web.StreamResponse:
            verb = _verb(request, path)
            refused = await self._refused(request, verb, resource, subresource)
            if refused is not None:
                return refused
            return await handler(request, *([resource] if resource else []))  # type: ignore[no-any-return]

        app.router.add_route(method, path, guarded)

    async def _refused(
        self, request: web.Request, verb: str, resource: Resource | None, subresource: str
    ) -> web.Response | None:
        """Answers whom the server does not serve; notes the call of whom it does."""
        if self.token and request.headers.get("Authorization", "").split()[-1:] != [self.token]:
            return _refusal(401, "Unauthorized", "Unauthorized")
        what = "/".join(filter(None, (resource.plural if resource else "", subresource)))
        said = verb if resource in (None, SLICES) else f"{verb} {what}"
        if said in self.forbidden and resource is not None:
            await self._note(said, request)
            who = "system:serviceaccount:default:gateway"
            group = f'in API group "{resource.group}"'
            message = f'User "{who}" cannot {verb} resource "{what}" {group}'
            return _refusal(403, "Forbidden", f"{what}.{resource.group} is forbidden: {message}")
        if self.failure:
            await self._note(said, request)
            answer = _refusal(self.failure, "InternalError", "etcd has no leader")
            if self.retry_after_s is not None:
                answer.headers["Retry-After"] = str(self.retry_after_s)
            return answer
        if verb != "watch":  # which is noted once it is followed
            await self._note(said, request)
        return None

    async def _list_or_watch(self, request: web.Request, resource: Resource) -> web.StreamResponse:
        if request.query.get("watch") in ("true", "1"):
            return await self._watch(request, resource)
        found = [
            item
            for (plural, _, _), item in self._objects.items()
            if plural == resource.plural and _matches(item, request)
        ]
        metadata = {"resourceVersion": self._text()}
        kind = {"apiVersion": resource.api_version, "kind": f"{resource.kind}List"}
        return web.json_response(kind | {"metadata": metadata, "items": found})

    async def _watch(self, request: web.Request, resource: Resource) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion") or self._revision)
        expired = since < self._compacted
        said = "watch" if resource is SLICES else f"watch {resource.plural}"
        if expired and self.gone_by_status:
            await self._note(said, request)
            return _refusal(410, "Expired", "too old resource version")
        watch = _Watch(request, resource)
        if expired:
            watch.put("ERROR", status(410, "Expired", "too old resource version"))
            watch.end()
        for revision, plural, kind, item in self._history:
            if revision > since and plural == resource.plural:
                watch.put(kind, item)
        self._watches.add(watch)
        await self._note(said, request)
        try:
            return await watch.stream()
        finally:
            self._watches.discard(watch)

    async def _get(self, request: web.Request, resource: Resource) -> web.Response:
        found = self._objects.get(_key(request, resource))
        return web.json_response(found) if found else _missing(request, resource)

    async def _create(self, request: web.Request, resource: Resource) -> web.Response:
        item = await request.json()
        namespace = request.match_info.get("namespace", "")
        if _identity(resource, namespace, item["metadata"]["name"]) in self._objects:
            return _refusal(409, "AlreadyExists", f"{resource.plural} already exists")
        return web.json_response(self.apply(item, namespace, resource), status=201)

    async def _replace(self, request: web.Request, resource: Resource) -> web.Response:
        item, old = await request.json(), self._objects.get(_key(request, resource))
        if old is None:
            return _missing(request, resource)
        version = item["metadata"].get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            return _refusal(409, "Conflict", "the object has been modified")
        return web.json_response(self.apply(item, _key(request, resource)[1], resource))

    async def _patch(self, request: web.Request, resource: Resource) -> web.Response:
        old = self._objects.get(_key(request, resource))
        if old is None:
            return _missing(request, resource)
        if request.content_type not in _PATCHES:
            return _refusal(415, "UnsupportedMediaType", request.content_type)
        item = merged(old, await request.json())
        return web.json_response(self.apply(item, _key(request, resource)[1], resource))

    async def _delete(self, request: web.Request, resource: Resource) -> web.Response:
        if _key(request, resource) not in self._objects:
            return _missing(request, resource)
        _, namespace, name = _key(request, resource)
        return web.json_response(self.delete(name, namespace, resource))

    async def _get_scale(self, request: web.Request, resource: Resource) -> web.Response:
        found = self._objects.get(_key(request, resource))
        return web.json_response(scale_of(found)) if found else _missing(request, resource)

    async def _set_scale(self, request: web.Request, resource: Resource) -> web.Response:
        old = self._objects.get(_key(request, resource))
        if old is None:
            return _missing(request, resource)
        if request.method == "PATCH" and request.content_type not in _PATCHES:
            return _refusal(415, "UnsupportedMediaType", request.content_type)
        scale = merged(scale_of(old), await request.json())
        replicas = scale["spec"]["replicas"]
        if not isinstance(replicas, int) or replicas < 0:
            return _refusal(422, "Invalid", "spec.replicas: must be greater than or equal to 0")
        changed = merged(old, {"spec": {"replicas": replicas}})
        return web.json_response(
            scale_of(self.apply(changed, _key(request, resource)[1], resource))
        )

    async def _evict(self, request: web.Request, resource: Resource) -> web.Response:
        _, namespace, name = key = _key(request, resource)
        pod = self._objects.get(key)
        if pod is None:
            return _missing(request, resource)
        for (plural, where, _), budget in self._objects.items():
            if (plural, where) != (BUDGETS.plural, namespace):
                continue
            if selects(budget["spec"]["selector"], pod):
                if budget["status"]["disruptionsAllowed"] < 1:
                    message = "Cannot evict pod as it would violate the pod's disruption budget."
                    return _refusal(429, "TooManyRequests", message)
                budget["status"]["disruptionsAllowed"] -= 1
        self.delete(name, namespace, resource)
        done = {"apiVersion": "v1", "kind": "Status", "status": "Success", "code": 201}
        return web.json_response(done, status=201)

    async def _note(self, verb: str, request: web.Request) -> None:
        async with self._changed:
            self.requests.append((verb, dict(request.query)))
            self._changed.notify_all()

    def _commit(self, resource: Resource, kind: str, item: Object) -> None:
        self._revision += 1
        item["metadata"]["resourceVersion"] = self._text()
        kept = copy.deepcopy(item)
        self._history.append((self._revision, resource.plural, kind, kept))
        for watch in self._watches:
            if watch.resource is resource:
                watch.put(kind, kept)

    def _text(self) -> str:
        return str(self._revision)


class _Watch:
    """One watch under way."""

    def __init__(self, request: web.Request, resource: Resource) -> None:
        self.resource = resource
        self._request = request
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._timeout_s = float(request.query.get("timeoutSeconds") or 3600)

    def put(self, kind: str, item: Object) -> None:
        if kind in ("BOOKMARK", "ERROR") or _matches(item, self._request):
            bookmarks = self._request.query.get("allowWatchBookmarks") in ("true", "1")
            if kind != "BOOKMARK" or bookmarks:
                line = json.dumps({"type": kind, "object": item})
                self._events.put_nowait(line.encode() + b"\n")

    def end(self) -> None:
        self._events.put_nowait(None)

    def cut(self) -> None:
        self._events.put_nowait(b'{"type":"MODIFIED","object":{"met')
        self._events.put_nowait(b"")

    async def stream(self) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(self._request)
        with contextlib.suppress(ConnectionError):  # the client may go first
            await self._write(response)
        return response

    async def _write(self, response: web.StreamResponse) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                while (line := await self._events.get()) is not None:
                    if not line:
                        assert self._request.transport is not None
                        self._request.transport.close()
                        return
                    await response.write(line)
        await response.write_eof()


@asynccontextmanager
async def serving(port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[KubeApi]:
    """Runs a server for the length of a block."""
    api = KubeApi()
    runner = web.AppRunner(api.application(), access_log=None, shutdown_timeout=0.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        host, bound = runner.addresses[0][:2]
        api.url = f"{'https' if tls else 'http'}://{host}:{bound}"
        yield api
    finally:
        api.end_watches()
        await runner.cleanup()


def kubeconfig(url: str, token: str = "secret") -> str:
    """Renders a kubeconfig file for a server."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": url}}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
    )


def _verb(request: web.Request, path: str) -> str:
    if request.method != "GET":
        return request.method.lower()
    if path.endswith("}") or path.endswith(f"/{SCALE}"):
        return "get"
    return "watch" if request.query.get("watch") in ("true", "1") else "list"


def _matches(item: Object, request: web.Request) -> bool:
    """Namespace, a selector of `key=value` terms, and the node of a pod."""
    namespace = request.match_info.get("namespace")
    if namespace is not None and item["metadata"].get("namespace") != namespace:
        return False
    labels = item["metadata"].get("labels") or {}
    terms = _terms(request, "labelSelector")
    fields = {
        "metadata.name": item["metadata"]["name"],
        "spec.nodeName": item.get("spec", {}).get("nodeName"),
    }
    return all(labels.get(key) == value for key, value in terms) and all(
        fields.get(key) == value for key, value in _terms(request, "fieldSelector")
    )


def _terms(request: web.Request, name: str) -> list[tuple[str, str]]:
    parts = (term.partition("=") for term in request.query.get(name, "").split(",") if term)
    return [(key, value) for key, _, value in parts]


def _identity(resource: Resource, namespace: str, name: str) -> tuple[str, str, str]:
    return resource.plural, namespace if resource.namespaced else "", name


def _key(request: web.Request, resource: Resource) -> tuple[str, str, str]:
    namespace = request.match_info.get("namespace", "")
    return _identity(resource, namespace, request.match_info["name"])


def _refusal(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(status(code, reason, message), status=code)


def _missing(request: web.Request, resource: Resource) -> web.Response:
    name = request.match_info["name"]
    return _refusal(404, "NotFound", f'{resource.plural} "{name}" not found')


def _answer(body: Object) -> Any:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(body)

    return handler
