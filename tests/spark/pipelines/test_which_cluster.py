"""Which cluster the jobs and tools of `odradek spark` ask: the same cluster as all other commands."""

from __future__ import annotations

from argparse import ArgumentParser

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from odradek.spark.delivery.connecting import add_connection_options
from odradek.spark.pipelines.job import add_cluster_arguments


@pytest.mark.parametrize("add", [add_cluster_arguments, add_connection_options], ids=["jobs", "tools"])
@pytest.mark.parametrize(
    ("variable", "words", "cluster"),
    [
        (None, [], "127.0.0.1:9092"),
        ("", [], "127.0.0.1:9092"),
        ("one:9092", [], "one:9092"),
        ("one:9092", ["--bootstrap-server", "two:9092"], "two:9092"),
        ("one:9092", ["--bootstrap", "two:9092"], "two:9092"),
    ],
)
def test_an_option_wins_over_the_variable(
    add: object, variable: str | None, words: list[str], cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without either, it is the node of `odradek dev`."""
    if variable is None:
        monkeypatch.delenv("ODRADEK_BOOTSTRAP", raising=False)
    else:
        monkeypatch.setenv("ODRADEK_BOOTSTRAP", variable)
    parser = ArgumentParser()
    assert callable(add)
    add(parser)
    assert parser.parse_args(words).bootstrap == cluster
