"""`python -m verifier`: config, logs, model, engine, serve."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Sequence

import uvloop
from paceline.v1 import drafter_pb2, worker_pb2

from common.model.runner import Runner
from common.rpc import process, worker, worker_process
from verifier.config import VerifierConfig
from verifier.engine import Engine
from verifier.links import DrafterLinks
from verifier.service import VerifierService, status


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verifier until it is told to stop; returns the exit status."""
    return process.run(
        VerifierConfig,
        run,
        argv,
        prog="verifier",
        description="Checks drafts with the target model and owns the committed tokens.",
    )


def run(settings: VerifierConfig) -> None:
    """Loads the model and serves it."""
    runner = worker_process.load_runner(
        settings,
        kv_bytes=settings.engine.kv_bytes,
        block_tokens=settings.engine.block_tokens,
        max_len=settings.engine.max_len_tokens or None,
    )
    uvloop.run(serve(settings, runner))


async def serve(settings: VerifierConfig, runner: Runner) -> None:
    """Serves until SIGTERM, SIGINT or `Worker.Drain`."""
    description = worker.describe(
        runner,
        tier=worker_pb2.TIER_VERIFIER,
        name=settings.name,
        incarnation=secrets.randbits(63),
    )
    hello = drafter_pb2.Hello(
        tokenizer_fingerprint=description.tokenizer_fingerprint,
        vocab_size=description.vocab_size,
    )
    links = DrafterLinks(hello, asyncio.get_running_loop())
    engine = Engine(runner, settings.engine, links)
    links.bind(engine)
    description.methods.extend(engine.limits.methods)
    generation = VerifierService(
        engine, runner.loaded.eos_token_ids, settings.stream_interval_ms / 1e3
    )
    try:
        await worker_process.serve(
            settings,
            engine,
            service="verifier",
            description=description,
            status=lambda: status(engine),
            register=generation.register,
        )
    finally:
        await links.close()


if __name__ == "__main__":
    sys.exit(main())
