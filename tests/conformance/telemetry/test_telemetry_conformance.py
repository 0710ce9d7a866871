"""Our answers about client metrics are Apache Kafka's in each recorded conversation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testkit.odradek_server import start_odradek
from tests.conformance.document import PATH as DOCUMENT
from tests.conformance.telemetry.recording import RECORDING, ask_all
from tests.conformance.telemetry.talk import CASES


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start our node without a subscription."""
    server = start_odradek(tmp_path_factory.mktemp("telemetry"))
    try:
        yield server.bootstrap
        assert server.is_running(), server.log_tail()
    finally:
        server.kill()


def test_the_recording_is_of_these_conversations() -> None:
    """If the questions have changed since Kafka was asked, the recording is refused until it is made again."""
    assert list(RECORDING.load()) == [case.name for case in CASES]
    assert RECORDING.is_sealed(), (
        "the cases have changed: `python -m tests.conformance.telemetry record` asks Apache Kafka again"
    )


def test_every_error_was_met() -> None:
    """The recording has each error that Kafka returns to the two requests."""
    answers = [answer for case in RECORDING.load().values() for answer in case]
    assert {answer["error"] for answer in answers if "error" in answer} == {0, 89}
    assert {answer["push"] for answer in answers if isinstance(answer.get("push"), int)} == {
        *(0, 42, 76, 87, 89, 117, 118)
    }


def test_every_answer_is_kafkas(bootstrap: str) -> None:
    """Errors, subscription ids, intervals and metric names are Kafka's in each answer."""
    assert RECORDING.compare(ask_all(bootstrap)) == []


def test_the_document_counts_the_conversations() -> None:
    """docs/compatibility.md gives the number of recorded conversations and of their answers."""
    answers = sum(map(len, RECORDING.load().values()))
    assert f"{len(RECORDING.load())} conversations with {answers} answers" in DOCUMENT.read_text()
