"""The recording of Apache Kafka 4.3's answers in the SASL conversations, and how they run against a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conformance.recordings import Recording
from tests.conformance.sasl.cases import all_cases
from tests.conformance.sasl.servers import Place
from tests.conformance.sasl.talk import conversation

__all__ = ["RECORDING", "ask_all"]

RECORDING = Recording(Path(__file__).parent, ("cases", "servers", "talk"))


def ask_all(place: Place) -> dict[str, list[Any]]:
    """Return the answers of a server, by the names of cases."""
    return {case.name: conversation(case, place) for case in all_cases()}
