"""The recorded answers of Apache Kafka 4.3 to the patterns, with a seal over patterns and answers."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.recordings import Recording

__all__ = ["RECORDING"]

RECORDING = Recording(Path(__file__).parent, ("asking", "table"))
