"""The book of the hunt: a file with a line for each outcome, so that an interrupted hunt can go on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import attrs

from tests.mutants.bugs import BY_NAME
from tests.mutants.hunt.steps import SOUND, Outcome, Step

ROOT = Path(__file__).parents[3]
_CODE = ("wire", "metadata_quorum", "data_plane", "odradek", "sim")


class Book:
    """Outcomes of the present code, read from a file and added to it. Outcomes of other code are skipped."""

    def __init__(self, path: Path, *, keeps_all: bool = False) -> None:
        """Read the file. With `keeps_all`, outcomes of other code count as outcomes of the present code."""
        self._path = path
        self._code = _fingerprint()
        self.sound: dict[Step, Outcome] = {}
        self.of_mutant: dict[str, dict[Step, Outcome]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            for line in path.read_text().splitlines():
                said = json.loads(line)
                if keeps_all or said.pop("code") == self._key(said["mutant"]):
                    said.pop("code", None)
                    said["step"] = Step(*said["step"])
                    self._take(Outcome(**said))

    def add(self, outcome: Outcome) -> None:
        """Add an outcome, first to the file."""
        said = {"code": self._key(outcome.mutant), **attrs.asdict(outcome)}
        said["step"] = list(attrs.astuple(outcome.step))
        with self._path.open("a") as file:
            file.write(json.dumps(said) + "\n")
        self._take(outcome)

    def _take(self, outcome: Outcome) -> None:
        if outcome.mutant == SOUND:
            self.sound[outcome.step] = outcome
        else:
            self.of_mutant.setdefault(outcome.mutant, {})[outcome.step] = outcome

    def _key(self, mutant: str) -> str:
        bodies = "" if mutant not in BY_NAME else "".join(BY_NAME[mutant].bodies().values())
        return self._code + hashlib.sha256(bodies.encode()).hexdigest()[:8]

    def outcomes(self) -> Iterator[Outcome]:
        """Yield all outcomes."""
        yield from self.sound.values()
        for outcomes in self.of_mutant.values():
            yield from outcomes.values()

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU time of all outcomes."""
        return sum(each.cpu_seconds for each in self.outcomes())

    def found(self, mutant: str) -> Outcome | None:
        """Return the first outcome that shows this mutant."""
        return next((each for each in self.of_mutant.get(mutant, {}).values() if each.verdict), None)


def _fingerprint() -> str:
    """Return a hash of the product's and the simulator's code."""
    digest = hashlib.sha256()
    for top in _CODE:
        for path in sorted((ROOT / top).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
