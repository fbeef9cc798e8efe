"""A Kubernetes API server for tests: real HTTP on loopback, objects in memory, faults on demand.

Serves list, watch, get, create, replace and delete of EndpointSlices with resource versions,
label selectors, bookmarks, compaction (410 Gone), bearer tokens and refusals, and enough of API
discovery for the real kubectl, by which its faithfulness is tested. What a cluster does beyond
that it does not do.
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

GROUP, VERSION = "discovery.k8s.io", "v1"
PLURAL, KIND = "endpointslices", "EndpointSlice"
_ROOT = f"/apis/{GROUP}/{VERSION}"

Object = dict[str, Any]


class KubeApi:
    """The server; make one with `serving`.

    Attributes:
        url: Where it listens.
        requests: Verb and query of every call so far: ("list", {...}), ("watch", {...}).
        token: The bearer token it wants; None lets everybody in.
        forbidden: Verbs that are answered with 403.
        failure: Status that every call is answered with; None for none.
        gone_by_status: Whether a watch from too old a version is answered with status 410, not
            with an ERROR event. Clusters do both.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        self.token: str | None = None
        self.forbidden: set[str] = set()
        self.failure: int | None = None
        self.gone_by_status = False
        self._objects: dict[tuple[str, str], Object] = {}
        self._history: list[tuple[int, str, Object]] = []
        self._revision = 100
        self._compacted = 100
        self._watches: set[_Watch] = set()
        self._changed = asyncio.Condition()

    # What a test does to the cluster.

    def apply(self, item: Object, namespace: str = "default") -> Object:
        """Creates or replaces an object."""
        key = namespace, item["metadata"]["name"]
        kind = "MODIFIED" if key in self._objects else "ADDED"
        stored = copy.deepcopy(item) | {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND}
        stored["metadata"]["namespace"] = namespace
        self._objects[key] = stored
        self._commit(kind, stored)
        return stored

    def delete(self, name: str, namespace: str = "default") -> Object:
        """Deletes an object."""
        gone = self._objects.pop((namespace, name))
        self._commit("DELETED", gone)
        return gone

    def compact(self) -> None:
        """Forgets all history: a watch from an older version is too old."""
        self._compacted = self._revision
        self._history.clear()

    def bookmark(self) -> None:
        """Tells every watch the present version, which moves on by itself in a cluster."""
        self._revision += 1
        for watch in self._watches:
            watch.put("BOOKMARK", {"kind": KIND, "metadata": {"resourceVersion": self._text()}})

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
            watch.put("ERROR", _status(410, "Expired", "too old resource version"))
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
        app = web.Application(middlewares=[self._admit])
        app.router.add_get("/version", _answer({"major": "1", "minor": "33", "gitVersion": "v1"}))
        app.router.add_get("/api", _answer({"kind": "APIVersions", "versions": []}))
        app.router.add_get("/apis", _answer(_groups()))
        app.router.add_get(_ROOT, _answer(_resources()))
        collection = f"{_ROOT}/namespaces/{{namespace}}/{PLURAL}"
        app.router.add_get(collection, self._list_or_watch)
        app.router.add_post(collection, self._create)
        app.router.add_get(f"{collection}/{{name}}", self._get)
        app.router.add_put(f"{collection}/{{name}}", self._replace)
        app.router.add_delete(f"{collection}/{{name}}", self._delete)
        return app

    @web.middleware
    async def _admit(self, request: web.Request, handler: Any) -> web.StreamResponse:
        verb = _verb(request)
        if self.token and request.headers.get("Authorization", "").split()[-1:] != [self.token]:
            return _refusal(401, "Unauthorized", "Unauthorized")
        if verb in self.forbidden:
            who = "system:serviceaccount:default:gateway"
            message = f'User "{who}" cannot {verb} resource "{PLURAL}" in API group "{GROUP}"'
            await self._note(verb, request)
            return _refusal(403, "Forbidden", f"{PLURAL}.{GROUP} is forbidden: {message}")
        if self.failure:
            await self._note(verb, request)
            return _refusal(self.failure, "InternalError", "etcd has no leader")
        if verb != "watch":
            await self._note(verb, request)
        return await handler(request)  # type: ignore[no-any-return]

    async def _list_or_watch(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") in ("true", "1"):
            return await self._watch(request)
        found = [item for item in self._objects.values() if _matches(item, request)]
        metadata = {"resourceVersion": self._text()}
        kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": f"{KIND}List"}
        return web.json_response(kind | {"metadata": metadata, "items": found})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion") or self._revision)
        expired = since < self._compacted
        if expired and self.gone_by_status:
            await self._note("watch", request)
            return _refusal(410, "Expired", "too old resource version")
        watch = _Watch(request)
        if expired:
            watch.put("ERROR", _status(410, "Expired", "too old resource version"))
            watch.end()
        for revision, kind, item in self._history:
            if revision > since:
                watch.put(kind, item)
        self._watches.add(watch)
        await self._note("watch", request)
        try:
            return await watch.stream()
        finally:
            self._watches.discard(watch)

    async def _get(self, request: web.Request) -> web.Response:
        found = self._objects.get(_key(request))
        return web.json_response(found) if found else _missing(request)

    async def _create(self, request: web.Request) -> web.Response:
        item = await request.json()
        namespace = request.match_info["namespace"]
        if (namespace, item["metadata"]["name"]) in self._objects:
            return _refusal(409, "AlreadyExists", f"{PLURAL} already exists")
        return web.json_response(self.apply(item, namespace), status=201)

    async def _replace(self, request: web.Request) -> web.Response:
        item, old = await request.json(), self._objects.get(_key(request))
        if old is None:
            return _missing(request)
        version = item["metadata"].get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            return _refusal(409, "Conflict", "the object has been modified")
        return web.json_response(self.apply(item, request.match_info["namespace"]))

    async def _delete(self, request: web.Request) -> web.Response:
        if _key(request) not in self._objects:
            return _missing(request)
        return web.json_response(self.delete(request.match_info["name"], _key(request)[0]))

    async def _note(self, verb: str, request: web.Request) -> None:
        async with self._changed:
            self.requests.append((verb, dict(request.query)))
            self._changed.notify_all()

    def _commit(self, kind: str, item: Object) -> None:
        self._revision += 1
        item["metadata"]["resourceVersion"] = self._text()
        kept = copy.deepcopy(item)
        self._history.append((self._revision, kind, kept))
        for watch in self._watches:
            watch.put(kind, kept)

    def _text(self) -> str:
        return str(self._revision)


class _Watch:
    """One watch under way."""

    def __init__(self, request: web.Request) -> None:
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


def _verb(request: web.Request) -> str:
    if request.method == "GET" and request.path.endswith(f"/{PLURAL}"):
        return "watch" if request.query.get("watch") in ("true", "1") else "list"
    return request.method.lower()


def _matches(item: Object, request: web.Request) -> bool:
    """Namespace, and a selector of `key=value` terms."""
    if item["metadata"].get("namespace") != request.match_info["namespace"]:
        return False
    labels = item["metadata"].get("labels") or {}
    terms = (term for term in request.query.get("labelSelector", "").split(",") if term)
    return all(labels.get(key) == value for key, _, value in (t.partition("=") for t in terms))


def _key(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


def _status(code: int, reason: str, message: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def _refusal(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(_status(code, reason, message), status=code)


def _missing(request: web.Request) -> web.Response:
    return _refusal(404, "NotFound", f'{PLURAL} "{request.match_info["name"]}" not found')


def _answer(body: Object) -> Any:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(body)

    return handler


def _groups() -> Object:
    version = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
    group = {"name": GROUP, "versions": [version], "preferredVersion": version}
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}


def _resources() -> Object:
    verbs = ["create", "delete", "get", "list", "update", "watch"]
    resource = {"name": PLURAL, "singularName": "", "namespaced": True, "kind": KIND}
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [resource | {"verbs": verbs}],
    }
