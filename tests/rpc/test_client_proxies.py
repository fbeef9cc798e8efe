"""Clients of a proxy whose gateway is lost, and of what is no gateway at all."""

from __future__ import annotations

import threading

import grpc
import paceline
import pytest
from paceline import errors
from paceline.v1 import inference_pb2 as pb

from tests.rpc.bare_http2 import GRPC, Stream, bare_http2
from tests.rpc.scripted_gateway import CHUNKS, COMPLETE, STARTED

WAIT_S = 10


class Proxy:
    """To two gateways: the first gives a token and is lost, the second goes on.

    Args:
        code: Of HTTP/2, with which it tells its client.
    """

    def __init__(self, code: int) -> None:
        self._code = code
        self.requests: list[pb.GenerateRequest] = []
        self.lost = threading.Event()

    def __call__(self, stream: Stream) -> None:
        request = pb.GenerateRequest.FromString(stream.request)
        self.requests.append(request)
        resumed = len(request.resume.token_ids)
        stream.headers(GRPC)
        started = pb.GenerationStarted(resumed_tokens=resumed)
        started.MergeFrom(STARTED.started)
        stream.message(pb.GenerateResponse(started=started))
        if not resumed:
            stream.message(CHUNKS[0])
            assert self.lost.wait(WAIT_S)
            return stream.reset(self._code)
        for message in (*CHUNKS[1:], COMPLETE):
            stream.message(message)
        return stream.headers({"grpc-status": "0"}, end=True)


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_gateway_lost_behind_a_proxy_is_no_end(code: int) -> None:
    proxy = Proxy(code)
    with bare_http2(proxy) as address, paceline.Client(address) as client:
        generation = client.generate("go", timeout=WAIT_S)
        chunks = iter(generation)
        assert next(chunks).token_ids == (11,)
        proxy.lost.set()
        assert [chunk.token_ids for chunk in chunks] == [(12, 13), (14,), ()]
        assert generation.result().text == "Once upon a time"
    assert [list(request.resume.token_ids) for request in proxy.requests] == [[], [11]]


async def test_nor_is_it_for_asyncio() -> None:
    proxy = Proxy(2)
    with bare_http2(proxy) as address:
        async with paceline.AsyncClient(address) as client:
            texts = []
            async for chunk in client.generate("go", timeout=WAIT_S):
                texts.append(chunk.text)
                proxy.lost.set()
    assert "".join(texts) == "Once upon a time"


def test_who_opted_out_is_told_that_it_was_lost() -> None:
    proxy = Proxy(2)
    proxy.lost.set()
    with bare_http2(proxy) as address, paceline.Client(address) as client:
        lost = rf"^the connection to {address} was lost \(.*Received RST_STREAM with error code 2"
        with pytest.raises(errors.UnavailableError, match=lost) as caught:
            client.generate("go", resume=False).result()
    assert isinstance(caught.value.__cause__, grpc.RpcError)


@pytest.mark.parametrize(
    ("status", "details", "error"),
    [
        ("200", "Stream removed.*", errors.UnknownError),
        ("301", "Received http2 header with status: 301", errors.UnknownError),
        ("401", "Received http2 header with status: 401", errors.UnauthenticatedError),
        ("404", "Received http2 header with status: 404", errors.UnimplementedError),
    ],
)
def test_a_web_server_is_told_as_what_it_is_not(
    status: str, details: str, error: type[errors.RpcError]
) -> None:
    def page(stream: Stream) -> None:
        stream.headers({":status": status, "content-type": "text/html"})
        stream.page(b"<h1>Hello</h1>")

    with bare_http2(page) as address, paceline.Client(address) as client:
        told = rf"^{address} answered as no gateway does \({details}\); is it one\?$"
        with pytest.raises(error, match=told):
            client.models()
