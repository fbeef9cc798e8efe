"""The commands `paceline fleet …`, loaded by the SDK's command line.

Arguments and what is printed; the work is in the modules that each command imports when it runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from paceline import Model
from paceline.cli._options import Address, Json
from paceline.errors import UnavailableError

from common.commands import ending_well
from common.errors import ConfigError, InvalidArgument

if TYPE_CHECKING:
    from fleet.gateway_client import FleetClient

fleet = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="See, plan and change a fleet of workers. Gateways that ask for tokens tell operators "
    "only: PACELINE_TOKEN, PACELINE_CA, PACELINE_CERT and PACELINE_KEY, as for all commands.",
    epilog="Example: paceline fleet status --watch",
)

EXIT_FOUND = 1
"""The doctor found something wrong."""

_SHAPE = ("layers", "kv_heads", "head_size")

_DAY_S = 86_400

_Interval = Annotated[float, typer.Option(min=0.05, max=_DAY_S, help="Seconds between two looks")]


@fleet.command(epilog="Example: paceline fleet status --watch --interval 2")
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Until Ctrl-C, as a live table")] = False,
    interval: _Interval = 1.0,
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Show every worker: pool, GPU, model, load, cache, speed, best acceptance.

    Tokens a second are those between two looks. With --json and --watch a line for each look.
    """
    from fleet import live
    from fleet.gateway_client import FleetClient

    with ending_well(), FleetClient(address) as client:
        if watch:
            live.watch(client, interval, _line if as_json else None)
        else:
            live.once(client, interval, _line if as_json else None)


@fleet.command(epilog="Example: paceline fleet pairs --json")
def pairs(address: Address = None, as_json: Json = False) -> None:
    """Show every verifier with every drafter: fit, acceptance, times, gain, offered or not.

    Acceptance, times and gain are of recent rounds: the last few dozen.
    """
    from fleet import tables
    from fleet.gateway_client import FleetClient

    with ending_well(), FleetClient(address) as client:
        (now,) = client.look()
    if as_json:
        _line({"pairs": [asdict(pair) for pair in now.pairs]})
    else:
        tables.console().print(tables.pairs(now))


@fleet.command(epilog="Example: paceline fleet drain 10.0.3.7:7072 --grace 60 --wait")
def drain(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="As `status` names it.")],
    grace: Annotated[
        int,
        typer.Option(
            min=0, max=_DAY_S, help="Seconds for running requests; 0: the worker's own setting"
        ),
    ] = 0,
    wait: Annotated[bool, typer.Option("--wait", help="Until the worker is gone")] = False,
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Retire a worker: it takes nothing new, finishes what it has, and its process ends."""
    from fleet import drains
    from fleet.gateway_client import FleetClient

    with ending_well(), FleetClient(address) as client:
        drains.drain(client, worker, grace, wait=wait, emit=_line if as_json else None)


@fleet.command(epilog="Example: paceline fleet scale drafter/t4 12 --namespace serving")
def scale(
    pool: Annotated[str, typer.Argument(metavar="TIER/POOL", help="As in drafter/t4.")],
    replicas: Annotated[int, typer.Argument(min=0, help="How many.")],
    release: Annotated[
        str | None, typer.Option(help="Helm release, where several have such a pool")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="The context's unless given")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Of the kubeconfig")] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(dir_okay=False, help="KUBECONFIG or ~/.kube/config unless given")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set the replicas of a pool's Deployment on Kubernetes, unless an autoscaler owns it."""
    from fleet.deployments import Deployments, PoolName

    with ending_well():
        wanted = PoolName.parse(pool)
        with Deployments(kubeconfig, context, namespace) as deployments:
            done = deployments.scale(wanted, replicas, release)
    if as_json:
        _line(asdict(done))
    else:
        typer.echo(
            f"{wanted}: Deployment {done.namespace}/{done.deployment} from {done.before} to "
            f"{done.after} replicas"
        )


@fleet.command(
    epilog="Example: paceline fleet plan --target-params 32 --target-shape 64,8,128 "
    "--verifiers H200 --drafters T4,L4 --requests-per-s 8 --token-ms 25 --acceptance 0.75 "
    "--simulate"
)
def plan(
    config: Annotated[
        Path | None, typer.Option(dir_okay=False, help="YAML file; options win over it")
    ] = None,
    target_params: Annotated[
        float | None,
        typer.Option(
            help="Billions of the target's parameters; of a mixture of experts, those that a token "
            "uses"
        ),
    ] = None,
    target_total_params: Annotated[
        float | None,
        typer.Option(help="Billions of all its parameters, where a token does not use all"),
    ] = None,
    target_shape: Annotated[
        str | None, typer.Option(metavar="LAYERS,KV_HEADS,HEAD_SIZE", help="Of the target")
    ] = None,
    draft_params: Annotated[
        float | None, typer.Option(help="Billions of the draft model's parameters")
    ] = None,
    draft_shape: Annotated[
        str | None, typer.Option(metavar="LAYERS,KV_HEADS,HEAD_SIZE", help="Of the draft model")
    ] = None,
    acceptance: Annotated[
        float | None, typer.Option(help="Chance that a draft token is right, 0 to 1")
    ] = None,
    round_trip_ms: Annotated[
        float | None, typer.Option(help="From verifier to drafter and back")
    ] = None,
    requests_per_s: Annotated[float | None, typer.Option(help="That arrive")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Mean of a prompt")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Mean of an output")] = None,
    token_ms: Annotated[float | None, typer.Option(help="Most for an output token")] = None,
    first_token_ms: Annotated[float | None, typer.Option(help="Most to the first token")] = None,
    verifiers: Annotated[str | None, typer.Option(help="GPU types with commas")] = None,
    drafters: Annotated[
        str | None, typer.Option(help="GPU types with commas; empty for none")
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            help="T4=0.35, a price for an hour, or a type, mine=24/600/125/0.9: GB, GB/s, "
            "TFLOPS, price; repeatable"
        ),
    ] = None,
    most: Annotated[
        list[str] | None, typer.Option(help="T4=8: there are no more of a type; repeatable")
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Play the cheapest fleet through, and compare")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulation")] = 0,
    as_json: Json = False,
) -> None:
    """Find the cheapest replicas, by GPU type, for a pair of models, traffic and a latency.

    Each fleet has one type of verifiers and one of drafters. Everything else that
    a plan is made from, as efficiencies of the GPUs, is in the file: see
    docs/fleet.md.
    """
    from rich.console import Console
    from rich.text import Text

    from fleet import plan_tables, tables
    from fleet.plan import plan as search
    from fleet.simulation import check
    from fleet.workload import load_plan

    with ending_well():
        given = {
            "target.params_billion": target_params,
            "target.total_params_billion": target_total_params,
            **_shape("target", target_shape),
            "draft.params_billion": draft_params,
            **_shape("draft", draft_shape),
            "acceptance": acceptance,
            "round_trip_ms": round_trip_ms,
            "traffic.requests_per_s": requests_per_s,
            "traffic.prompt_tokens": prompt_tokens,
            "traffic.output_tokens": output_tokens,
            "goal.token_ms": token_ms,
            "goal.first_token_ms": first_token_ms,
            "verifiers": _words(verifiers),
            "drafters": _words(drafters),
            "gpu": gpu,
            "most": most,
        }
        with Console(stderr=True).status("", spinner="dots") as spinner:
            with _named_as_given(given):
                loaded = load_plan(config, given)
                options = search(loaded, lambda pair: spinner.update(Text(pair)))
            played = None
            if simulate:
                spinner.update("simulation")
                played = check(options[0].layout, options[0].estimate, loaded, seed)
    if as_json:
        _line(plan_tables.data(loaded, options, played))
    else:
        tables.console().print(plan_tables.tables(loaded, options, played))


@fleet.command(epilog="Example: paceline fleet doctor")
def doctor(interval: _Interval = 1.0, address: Address = None, as_json: Json = False) -> None:
    """Say what is wrong, why, and what to change; exits with 1 where anything is.

    Looks twice, so that queues which grow can be told from those that do not.
    """
    from fleet import tables
    from fleet.doctor import findings
    from fleet.finding import Evidence
    from fleet.gateway_client import FleetClient

    with ending_well(), FleetClient(address) as client:
        *earlier, now = client.look(2, interval)
        models = _models(client)
    before = earlier[0] if earlier else None  # the gateway may end between the two
    found = findings(Evidence(now=now, before=before, models=models))
    if as_json:
        _line({"findings": [asdict(finding) for finding in found]})
    else:
        tables.console().print(tables.found(found))
    if found:
        raise typer.Exit(EXIT_FOUND)


def _models(client: FleetClient) -> list[Model]:
    try:
        return client.models()
    except UnavailableError:  # none is known yet, of which the workers' states tell more
        return []


@contextmanager
def _named_as_given(given: Mapping[str, Any]) -> Iterator[None]:
    """Words what is wrong with a setting as wrong usage of the option that gave it, if one did."""
    try:
        yield
    except ConfigError as error:
        name, _, problem = str(error).partition(": ")
        key = name.removeprefix("--").replace("-", "_")
        if given.get(key) is None:
            raise
        raise InvalidArgument(_option(key), problem) from None


def _option(key: str) -> str:
    """Names the option that gives a setting of a plan."""
    group, _, name = key.rpartition(".")
    model = f"{group}-" if group in ("target", "draft") else ""
    name = "shape" if name in _SHAPE else name.removesuffix("_billion").replace("_", "-")
    return model + name


def _shape(model: str, text: str | None) -> dict[str, int]:
    if text is None:
        return {}
    parts = text.split(",")
    if len(parts) != len(_SHAPE) or not all(part.strip().isdecimal() for part in parts):
        raise InvalidArgument(
            f"{model}-shape", f"must be LAYERS,KV_HEADS,HEAD_SIZE as in 32,8,128, got {text!r}"
        )
    return {f"{model}.{name}": int(part) for name, part in zip(_SHAPE, parts, strict=True)}


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def _line(value: Any) -> None:
    typer.echo(json.dumps(value))
