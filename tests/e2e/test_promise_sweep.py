"""The sweep of the promise through real services."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from bench import promise

METHODS = "draft,medusa+ngram,eagle,draft+lookahead,auto"


def test_every_method_writes_what_plain_decoding_does() -> None:
    flags = ["--generations", "4", "--max-tokens", "8", "--dtype", "bfloat16", "--json"]
    ran = CliRunner().invoke(promise.app, [*flags, "--methods", METHODS])
    assert ran.exit_code == 0, ran.output
    tallies = json.loads(ran.stdout)
    assert [tally["method"] for tally in tallies] == ["plain", *METHODS.split(",")]
    for tally in tallies:
        assert (tally["greedy"], tally["drawn"]) == (2, 2)
        assert 0 < tally["passes"] <= tally["tokens"] <= 32
        assert tally["differing_tokens"] == 0
        assert tally["first"] is None
