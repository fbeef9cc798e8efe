"""Stands in for a service: real gRPC health, real announcement, no model.

FAKE_NOTES names a file that gets a line when it starts and when it is told to stop.
FAKE_BROKEN names a service that fails to start.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2_grpc


def note(event: str) -> None:
    with Path(os.environ["FAKE_NOTES"]).open("a") as notes:
        notes.write(f"{event}\n")


def main(name: str, flags: list[str]) -> None:
    options = dict(zip(flags[::2], flags[1::2], strict=True))
    note(f"start {name}")
    if os.environ.get("FAKE_BROKEN") == name:
        sys.exit("error: no such weights")
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    host = f"[{options['--host']}]" if ":" in options["--host"] else options["--host"]
    port = server.add_insecure_port(f"{host}:{options['--port']}")
    server.start()
    print("loading", flush=True)
    print(json.dumps({"event": "serving", "service": name, "port": port}), flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    note(f"stop {name}")
    server.stop(0).wait()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(sys.argv[1], sys.argv[2:])
