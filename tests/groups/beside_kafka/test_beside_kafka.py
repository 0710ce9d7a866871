"""Our answers about consumer groups are those of Apache Kafka 4.3 to the same requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.odradek_server import start_odradek
from tests.groups.beside_kafka import cases, refusals, transactions
from tests.groups.beside_kafka.asking import CASES, ERRORS, answers_of, run_tag
from tests.groups.beside_kafka.errors import NOT_ASKED, required
from tests.groups.beside_kafka.recording import RECORDING, SETTINGS, unexplained
from tests.kafka_jars import NO_RETENTION


def test_the_recording_is_of_these_conversations() -> None:
    """If the questions have changed since Kafka was asked, the recording is refused until it is made again."""
    assert cases.case is refusals.case is transactions.case, "importing the cases enters them"
    assert len(CASES) >= 15
    assert RECORDING.is_sealed()


def test_every_error_is_asked_for() -> None:
    """The recording has each listed error of each version of each request at least once."""
    answered = {(str(name), int(version), str(error)) for name, version, error in RECORDING.load()[ERRORS]}
    assert sorted(set(required()) - answered) == []
    assert not NOT_ASKED.keys() & {error for *_, error in answered}


@pytest.mark.long
def test_we_answer_like_kafka(tmp_path: Path) -> None:
    """Error codes, texts, epochs, assignments and states are those of Kafka 4.3 with its default heartbeat interval."""
    server = start_odradek(
        tmp_path / "node", settings={**NO_RETENTION, **SETTINGS, "group.initial.rebalance.delay.ms": "300"}
    )
    try:
        assert unexplained(answers_of(server.bootstrap, run_tag())) == []
    finally:
        server.kill()
