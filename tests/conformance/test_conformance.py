"""One corpus of requests, answered by our node and by Apache Kafka 4.3, compared field by field."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.odradek_server import start_odradek
from bench.processes import ServerProcess
from tests.conformance.comparison import differences, load
from tests.conformance.corpus import CORPUS, hold
from tests.conformance.deliberate import DELIBERATE

RECORDED = load()


@pytest.fixture(scope="module")
def fresh_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node of our own, with nothing on it."""
    server = start_odradek(tmp_path_factory.mktemp("conformance"))
    try:
        yield server
    finally:
        server.stop()


def test_the_recording_holds_every_case() -> None:
    """A case that Kafka never answered proves nothing, and a recorded one that is gone is forgotten."""
    assert RECORDED.keys() == CORPUS.keys()


def test_we_answer_like_kafka(fresh_node: ServerProcess) -> None:
    """Every field of every answer, but for the differences that stand in `deliberate.py`, which all occur."""
    answers = hold(fresh_node.bootstrap, os.urandom(3).hex())
    found = [
        f"{name}: {difference}"
        for name, given in answers.items()
        for difference in differences(RECORDED[name], given)
    ]
    unexplained = [line for line in found if not any(rule.covers(line) for rule in DELIBERATE)]
    assert not unexplained, "\n".join(unexplained[:40])
    obsolete = [rule.reason for rule in DELIBERATE if not any(rule.covers(line) for line in found)]
    assert not obsolete


@pytest.mark.java
def test_the_recording_is_what_kafka_answers(apache_kafka: ServerProcess, tmp_path: Path) -> None:
    """The recorded answers are those of the running original."""
    answers = hold(apache_kafka.bootstrap, os.urandom(3).hex())
    changed = [
        f"{name}: {difference}"
        for name, given in answers.items()
        for difference in differences(RECORDED[name], given)
    ]
    assert not changed, "\n".join(changed[:40])
