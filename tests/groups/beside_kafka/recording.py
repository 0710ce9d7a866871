"""The recorded answers of Apache Kafka 4.3 to the conversations, with a seal over questions and answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conformance.recordings import Recording
from tests.groups.beside_kafka.deliberate import DELIBERATE

__all__ = ["RECORDING", "SETTINGS", "unexplained"]


SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.consumer.max.size": "5",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""The settings of both servers."""


def _a_line_each(talk: list[Any]) -> str:
    of_talk = ",\n  ".join(json.dumps(each, ensure_ascii=False, sort_keys=True) for each in talk)
    return f"[\n  {of_talk}\n]"


RECORDING = Recording(
    Path(__file__).parent, ("asking", "cases", "classic_bytes", "refusals", "transactions"), _a_line_each
)


def unexplained(answers: dict[str, list[Any]]) -> list[str]:
    """Return the differences from the recording, a line each, without the deliberate ones."""
    return [line for line in RECORDING.compare(answers) if not line.startswith(DELIBERATE)]
