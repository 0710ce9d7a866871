"""What Apache Kafka 4.3 made of the patterns: data, kept beside them with a seal over both."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.recordings import Recording

__all__ = ["RECORDING"]

RECORDING = Recording(Path(__file__).parent, ("asking", "table"))
