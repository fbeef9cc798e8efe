"""A way to a server of this machine as if it were far from here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing


@asynccontextmanager
async def slow_link(port: int, delay_s: float) -> AsyncIterator[str]:
    """Yields an address whose server says nothing, to each who connects, until a while later."""
    links: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        links.add(asyncio.create_task(_link(reader, writer, port, delay_s)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)


async def _link(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, delay_s: float
) -> None:
    await asyncio.sleep(delay_s)
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.gather(_carry(reader, far_writer), _carry(far_reader, writer))


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with closing(writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
