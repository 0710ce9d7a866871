"""Recordings of Apache Kafka's answers in the conversations of a folder, with a seal over questions and answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from testkit.kafka_server import KAFKA_VERSION
from tests.conformance.comparison import differences
from tests.conformance.seals import asking_code

__all__ = ["Recording"]

Answers = Mapping[str, list[Any]]


def _on_a_line(talk: list[Any]) -> str:
    return json.dumps(talk, ensure_ascii=False)


@attrs.frozen
class Recording:
    """The recorded answers of one folder by the names of conversations, and the modules that ask the questions."""

    folder: Path
    asking: tuple[str, ...]
    """The names of the modules whose code is part of the seal."""
    text_of: Callable[[list[Any]], str] = _on_a_line
    """Formats the answers of one conversation for the file."""

    @property
    def path(self) -> Path:
        """The file with the answers."""
        return self.folder / "kafka_4.3.json"

    @property
    def _seal_path(self) -> Path:
        return self.folder / "seal.txt"

    def write(self, answers: Answers) -> None:
        """Write the recording, in the order in which Kafka was asked, and seal it."""
        lines = [f"{json.dumps(name)}: {self.text_of(talk)}" for name, talk in answers.items()]
        self.path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        self._seal_path.write_text(self._seal() + "\n")

    def _seal(self) -> str:
        digest = hashlib.sha256(KAFKA_VERSION.encode())
        for name in self.asking:
            digest.update(asking_code(self.folder / f"{name}.py"))
        digest.update(self.path.read_bytes())
        return digest.hexdigest()

    def is_sealed(self) -> bool:
        """Return True if neither the questions nor the answers have changed since Kafka was asked."""
        return self._seal_path.read_text().strip() == self._seal()

    def load(self) -> dict[str, list[Any]]:
        """Load the recorded answers."""
        recorded: dict[str, list[Any]] = json.loads(self.path.read_text())
        return recorded

    def compare(self, answers: Answers) -> list[str]:
        """Return the differences of these answers from the recorded ones, a line each."""
        recorded = self.load()
        return [
            f"{name}: {difference}"
            for name, talk in answers.items()
            for difference in differences(recorded[name], json.loads(json.dumps(talk)))
        ]
