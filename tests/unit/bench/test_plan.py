from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from paceline import Client

from bench.contenders.contender import Loading
from bench.deployment import options
from bench.plan import choose, lacks, loading, plan
from bench.settings import FULL, HYBRIDS, METHODS, ROUNDING_PEERS, SHORT, Settings
from bench.wanted import wanted
from launcher.commandline import WorkerOptions
from launcher.models import Models
from verifier import methods as verifiers


def settings(*, full: bool) -> Settings:
    profile = FULL if full else SHORT
    return Settings(
        models=Models(target=Path("target")),
        dtype="auto",
        threads=0,
        repetitions=1,
        max_tokens=8,
        per_domain=0,
        methods=profile.methods,
        peers=profile.peers,
        concurrency=profile.concurrency,
        concurrent_methods=profile.concurrent_methods,
        round_trips_ms=profile.round_trips_ms,
        full=full,
    )


def test_what_the_deployment_lacks_is_left_out_and_said() -> None:
    methods, lacking = choose(METHODS, ("plain", "draft", "ngram"))
    assert methods == ("plain", "draft", "ngram")
    assert lacking == [
        "medusa: this deployment does not offer medusa",
        "eagle: this deployment does not offer eagle",
        "lookahead: this deployment does not offer lookahead",
    ]


def test_all_that_verifiers_run_is_measured() -> None:
    assert set(METHODS) == set(verifiers.METHODS)
    assert {part for hybrid in HYBRIDS for part in hybrid.split("+")} <= set(METHODS)


def test_a_hybrid_needs_all_its_parts() -> None:
    methods, lacking = choose(("draft+ngram", "draft+medusa"), ("plain", "draft", "ngram"))
    assert methods == ("plain", "draft+ngram")
    assert lacking == ["draft+medusa: this deployment does not offer medusa"]


def test_plain_comes_always_and_first() -> None:
    assert choose(("ngram", "plain"), ("ngram", "plain"))[0] == ("plain", "ngram")


def test_nothing_asked_for_is_everything_offered() -> None:
    methods, lacking = choose((), ("draft", "plain", "ngram"))
    assert methods == ("plain", "draft", "ngram", "draft+ngram")
    assert lacking == []


def test_peers_without_their_models_and_programs_are_left_out_and_said() -> None:
    asked = replace(
        settings(full=True),
        peers=("assisted", "llama", "llama-draft"),
        llama_server="/nowhere/llama",
    )
    with ExitStack() as stack, Client("127.0.0.1:1") as client:
        made = plan(asked, WorkerOptions(threads=1), ("plain",), client, stack)
    assert [variant.name for variant in made.single] == ["plain"]
    assert made.left_out[:3] == [
        "transformers, assisted: there is no draft model",
        "llama.cpp: no program /nowhere/llama; install llama.cpp, or name its server's path",
        "llama.cpp, draft model: there is no draft model",
    ]


def test_rounded_weights_are_compared_with_those_of_peers_that_round() -> None:
    asked = replace(settings(full=True), llama_server=sys.executable)
    asked = replace(asked, models=replace(asked.models, draft=Path("draft")))
    rounded = replace(asked, quantize="int8")
    assert not any(lacks(peer, rounded) for peer in ROUNDING_PEERS)
    assert "as they are stored" in lacks("transformers", rounded)
    four_bits = replace(asked, quantize="int4")
    assert "int8 alone" in lacks("llama", four_bits)
    assert lacks("engine", four_bits) == ""
    draft_alone = replace(asked, draft_quantize="int8")
    assert "as they are stored" in lacks("assisted", draft_alone)
    assert not any(lacks(peer, draft_alone) for peer in ("transformers", *ROUNDING_PEERS))


@pytest.mark.parametrize("draft_quantize", ["auto", "none", "int4"])
def test_services_round_what_is_asked_for(draft_quantize: str) -> None:
    asked = replace(settings(full=True), quantize="int8", draft_quantize=draft_quantize)
    workers = options(asked)
    assert (workers.quantize, workers.draft_quantize) == ("int8", draft_quantize)


def test_peers_round_what_the_services_do_if_they_can() -> None:
    asked = replace(settings(full=True), llama_server=sys.executable)
    asked = replace(asked, models=replace(asked.models, draft=Path("draft")))
    loaded = loading(asked, replace(options(asked), draft_quantize="int8"))
    assert (loaded.quantize, loaded.draft_quantize) == ("none", "int8")
    # The drafter's own choice was nobody's wish: those that cannot are compared all the same.
    assert lacks("assisted", asked) == lacks("llama-draft", asked) == ""


def test_a_peer_whose_files_cannot_be_written_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replace(settings(full=True), llama_server=sys.executable)
    assert lacks("llama", asked) == ""
    monkeypatch.setattr("bench.plan.find_spec", lambda name: None)
    assert "package gguf" in lacks("llama", asked)


def test_peers_have_the_threads_of_both_models(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, int, int]] = []

    @contextmanager
    def contender(name: str, loading: Loading) -> Iterator[None]:
        started.append((name, loading.threads, loading.at_once))
        yield

    monkeypatch.setattr("bench.plan.Contender", contender)
    monkeypatch.setattr("common.processors.count", lambda: 8)
    models = Models(target=Path("target"), draft=Path("draft"))
    peers = ("transformers", "assisted")
    asked = replace(settings(full=True), models=models, peers=peers, concurrency=(4, 16))
    with ExitStack() as stack, Client("127.0.0.1:1") as client:
        made = plan(asked, WorkerOptions(threads=3), ("plain",), client, stack)
    assert started == [("transformers", 6, 1), ("transformers", 6, 16), ("assisted", 6, 1)]
    assert [(method, count, variant.name) for method, count, variant in made.concurrent] == [
        ("transformers", 4, "transformers, 4 at once"),
        ("plain", 4, "plain, 4 at once"),
        ("transformers", 16, "transformers, 16 at once"),
        ("plain", 16, "plain, 16 at once"),
    ]


def test_hybrids_run_several_at_once_too() -> None:
    asked, offered = replace(settings(full=True), peers=()), ("plain", "draft", "ngram")
    with ExitStack() as stack, Client("127.0.0.1:1") as client:
        made = plan(asked, WorkerOptions(threads=1), offered, client, stack)
    together = {(method, count) for method, count, _ in made.concurrent}
    assert together == {
        (method, count) for method in (*offered, "draft+ngram") for count in FULL.concurrency
    }


def test_ratios_are_shown_of_what_was_measured() -> None:
    names = {"plain", "draft", "transformers"}
    found = {one.name: one.least for one in wanted(settings(full=False), names)}
    assert found == {"draft / plain": 1.5, "plain / transformers": 1.0}


def test_the_full_profile_wants_more() -> None:
    names = {"plain", "draft", "draft, 32 at once", "plain, 32 at once"}
    found = {one.name: one.least for one in wanted(settings(full=True), names)}
    assert found == {"draft / plain": 2.2, "draft, 32 at once / plain, 32 at once": 0.98}


def test_a_hybrid_is_held_against_each_of_its_members() -> None:
    names = {"plain", "draft", "ngram", "draft+ngram"}
    hybrid = {one.name: one.least for one in wanted(settings(full=True), names) if "+" in one.name}
    assert hybrid == {"draft+ngram / draft": 0.97, "draft+ngram / ngram": 0.97}
