"""Our answers about consumer groups beside those that Apache Kafka 4.3 gave to the same requests."""

from __future__ import annotations

import pytest

from tests.groups.beside_kafka import cases
from tests.groups.beside_kafka.asking import CASES, answers_of, run_tag
from tests.groups.beside_kafka.recording import compare, is_sealed
from tests.node_process import RunningNode


def test_the_recording_is_of_these_conversations() -> None:
    """A conversation that has changed since is asked of Kafka again: `python -m tests.groups.beside_kafka record`."""
    assert cases.case
    assert len(CASES) >= 15
    assert is_sealed()


@pytest.mark.long
def test_we_answer_like_kafka(node: RunningNode) -> None:
    """Error codes, texts, epochs, assignments and states are those of Kafka 4.3."""
    assert compare(answers_of(node.bootstrap, run_tag())) == []
