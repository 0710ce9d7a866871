"""Our answers about client metrics beside Apache Kafka's: the recorded conversations, answer by answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testkit.odradek_server import start_odradek
from tests.conformance.document import PATH as DOCUMENT
from tests.conformance.telemetry.recording import RECORDING, ask_all
from tests.conformance.telemetry.talk import CASES


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Our node, without a subscription."""
    server = start_odradek(tmp_path_factory.mktemp("telemetry"))
    try:
        yield server.bootstrap
        assert server.is_running(), server.log_tail()
    finally:
        server.kill()


def test_the_recording_is_of_these_conversations() -> None:
    """A case that has changed since is refused until Kafka was asked again."""
    assert list(RECORDING.load()) == [case.name for case in CASES]
    assert RECORDING.is_sealed(), (
        "the cases have changed: `python -m tests.conformance.telemetry record` asks Apache Kafka again"
    )


def test_every_error_was_met() -> None:
    """Each error that Kafka has for the two requests is in the recording."""
    answers = [answer for case in RECORDING.load().values() for answer in case]
    assert {answer["error"] for answer in answers if "error" in answer} == {0, 89}
    assert {answer["push"] for answer in answers if isinstance(answer.get("push"), int)} == {
        *(0, 42, 76, 87, 89, 117, 118)
    }


def test_every_answer_is_kafkas(bootstrap: str) -> None:
    """Errors, ids of subscriptions, intervals and metrics are Kafka's."""
    assert RECORDING.compare(ask_all(bootstrap)) == []


def test_the_document_counts_the_conversations() -> None:
    """docs/compatibility.md says how many there are."""
    answers = sum(map(len, RECORDING.load().values()))
    assert f"{len(RECORDING.load())} conversations with {answers} answers" in DOCUMENT.read_text()
