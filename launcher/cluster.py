"""All services of one deployment on this machine: started in order, watched, stopped in order.

    store ─┐
    drafter ┼─▶ gateway
    verifier┘

The first three start together, since loading models takes the time; the gateway follows with
their addresses. They stop the other way round, so that nobody loses what it leans on.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from common.address import bare, check_port
from common.errors import StartupError, Unavailable
from common.tls_config import check_exposure
from launcher import commandline, rundir, store
from launcher.models import Models
from launcher.process import OFFLINE, Process
from launcher.service import Service, State, StoreService

START_S = 600.0
STOP_S = 10.0
TICK_S = 0.05


Watcher = Callable[[Sequence[Service]], None]


class Cluster:
    """The services of one deployment, as a context manager: serving inside, gone after.

    Args:
        models: What is served, and what guesses.
        options: What both models' processes are told.
        host: Address the gateway listens on; brackets around one of IPv6 are left out.
        port: Its port; 0 lets the system choose.
        insecure: Listen beyond this machine, where everybody may use the gateway.
        with_store: Whether to start the embedded store.
        verbose: Copy the services' logs to standard error.
        watch: Called with the services again and again while something changes.
        drafter_link: Given the drafter's address, returns the one by which others reach it.
        environment: What the services find in theirs besides ours.
        metrics_port: Where the gateway serves metrics; the verifier's and the drafter's are on the
            next two ports. None serves none.
    """

    def __init__(
        self,
        *,
        models: Models,
        options: commandline.WorkerOptions | None = None,
        host: str = commandline.LOOPBACK,
        port: int = 0,
        insecure: bool = False,
        with_store: bool = True,
        verbose: bool = False,
        watch: Watcher = lambda _: None,
        drafter_link: Callable[[str], str] = lambda address: address,
        environment: Mapping[str, str] | None = None,
        metrics_port: int | None = None,
    ) -> None:
        self._models = models
        self._options = options or commandline.WorkerOptions()
        self._host = bare(host)
        self._port = port
        self._insecure = insecure
        self._verbose = verbose
        self._watch = watch
        self._drafter_link = drafter_link
        self._metrics_port = metrics_port
        ports = commandline.metrics_environment(metrics_port)
        self._environment = ports | dict(environment or {})
        self._directory: Path | None = None
        # In the order of their start; the gateway last.
        self._store = StoreService("store", needed=False) if with_store else None
        self._drafter = (
            Service("drafter", needed=False, about=str(models.draft)) if models.draft else None
        )
        self._verifier = Service("verifier", needed=True, about=str(models.target))
        self._gateway = Service("gateway", needed=True, host=reachable(self._host))

    @property
    def services(self) -> list[Service]:
        """The services, in the order of their start."""
        every = [self._store, self._drafter, self._verifier, self._gateway]
        return [service for service in every if service]

    @property
    def address(self) -> str:
        """Where the gateway listens."""
        return self._gateway.address

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def check(self) -> None:
        """Notice services that have died, and what others warn of.

        Raises:
            Unavailable: One that the deployment cannot do without.
        """
        for service in self.services:
            if service.state is not State.SERVING or not service.ended:
                continue
            service.state = State.LOST
            self._watch(self.services)
            if service.needed:
                assert service.process
                raise Unavailable(_end_of(service.process))
        self._watch(self.services)

    def stop(self) -> None:
        """Stop every service, last started first; one that takes too long is killed."""
        running = [s for s in reversed(self.services) if s.process]
        try:
            for service in running:
                assert service.process
                service.process.stop(STOP_S)
                if service.state in (State.STARTING, State.SERVING):
                    service.state = State.STOPPED
                self._watch(self.services)
        finally:
            # A second Ctrl-C lands here: no more waiting.
            for service in running:
                assert service.process
                service.process.kill()
            if self._directory:
                rundir.remove(self._directory)

    def _start(self) -> None:
        check_exposure(
            self._host,
            protected=False,
            insecure=self._insecure,
            remedy="up services of your own (python -m gateway) with tls and auth",
        )
        self._check_environment()
        self._check_ports()
        self._directory = rundir.create()
        if self._store:
            self._launch(self._store, store.command(self._directory))
        if self._drafter and self._models.draft:
            command = commandline.drafter_command(self._models.draft, self._options)
            self._launch(self._drafter, command)
        store_url = store.url(self._directory) if self._store else None
        command = commandline.verifier_command(self._models, self._options, store_url)
        self._launch(self._verifier, command)
        self._await_serving()
        self._launch(self._gateway, self._gateway_command())
        self._await_serving()

    def _check_environment(self) -> None:
        """Check that no service would answer in TLS, in which it is not asked here."""
        for name, value in (os.environ | self._environment).items():
            if value and name.startswith("PACELINE_") and "TLS__" in name:
                raise StartupError(
                    f"{name} is set, but what is started here speaks no TLS: unset it, or set up "
                    "services of your own (python -m gateway)"
                )

    def _check_ports(self) -> None:
        """Check what the services are going to listen on, all of it before any is started."""
        measured = commandline.metrics_ports(self._metrics_port)
        if self._drafter is None:
            measured.pop("drafter", None)
        for service, port in measured.items():
            if port == self._port:
                raise StartupError(
                    f"port {port} is the {service}'s for metrics: choose another with --port or "
                    f"--metrics-port, which takes {len(commandline.MEASURED)} ports"
                )
        check_port(self._host, self._port)
        for service, port in measured.items():
            host = self._host if service == "gateway" else commandline.LOOPBACK
            check_port(host, port, "--metrics-port")

    def _gateway_command(self) -> list[str]:
        command = commandline.gateway_command(
            self._host,
            self._port,
            model=self._models.target,
            verifier=self._verifier.address,
            drafter=self._drafter_link(self._drafter.address) if self._drafter else None,
            store_url=self._store.address if self._store else None,
            grace_s=self._options.grace_s,
        )
        return [*command, "--insecure"] if self._insecure else command

    def _launch(self, service: Service, command: list[str]) -> None:
        assert self._directory
        service.process = Process(
            service.name,
            command,
            log=self._directory / f"{service.name}.log",
            env={**os.environ, **OFFLINE, **self._environment},
            echo=sys.stderr if self._verbose else None,
        )
        service.state = State.STARTING
        service.started_s = time.monotonic()

    def _await_serving(self) -> None:
        """Wait until all that were launched serve, or one of them fails to."""
        deadline_s = time.monotonic() + START_S
        while starting := [s for s in self.services if s.state is State.STARTING]:
            for service in starting:
                self._advance(service, deadline_s)
            self._watch(self.services)
            time.sleep(TICK_S)

    def _advance(self, service: Service, deadline_s: float) -> None:
        assert service.process
        if service.ended:
            service.state = State.FAILED
            raise StartupError(service.process.obituary())
        if address := service.probe():
            service.address = address
            service.state = State.SERVING
            service.took_s = time.monotonic() - service.started_s
        elif time.monotonic() > deadline_s:
            raise StartupError(f"{service.name} was not ready within {START_S:.0f} s")


def _end_of(process: Process) -> str:
    """Say how one ended that had served: as an operator told it to, or by a fault."""
    if process.exit_code() == 0:
        return f"{process.name} has ended as it was told to: it was drained, or stopped"
    return process.obituary()


def reachable(host: str) -> str:
    """Return the host by which this machine reaches a server that listens on `host`.

    Args:
        host: A name or an address, of IPv6 without brackets.
    """
    return {"0.0.0.0": commandline.LOOPBACK, "::": "::1"}.get(host, host)
