"""The code coverage of all campaigns in one directory, and how much code runs with each option were the first to
reach. SHELL.

`coverage.json` in the campaign's directory keeps both, so that the next campaign continues with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

import attrs

from sim.campaign.coverage import PACKAGES, Branch, Coverage, lines_of
from sim.campaign.guidance import added_for, options_named
from sim.options import RunOptions

COVERED_EVERY = 20
"""The campaign records the coverage of one run in this many runs."""
_REPOSITORY = Path(__file__).resolve().parent.parent.parent

__all__ = ["COVERED_EVERY", "Guide", "everything"]


@attrs.define
class Guide:
    """Coverage of all campaigns in one directory. Threads share it."""

    path: Path
    coverage: Coverage = attrs.Factory(Coverage)
    news: dict[str, int] = attrs.Factory(dict)
    """For each option, how many lines, branches and points were first reached by a run with the option."""
    runs: int = 0
    _lock: Lock = attrs.Factory(Lock)

    @classmethod
    def read(cls, path: Path) -> Guide:
        """Read the file that `learn` writes; return an empty guide if there is no file. Raises `ValueError`,
        `KeyError`.
        """
        if not path.exists():
            return cls(path)
        given = json.loads(path.read_text())
        return cls(path, Coverage.from_json(given), dict(given["news"]), int(given["runs"]))

    def learn(self, file: Path, options: RunOptions) -> int:
        """Add the coverage that a run has written to `file`, and delete the file. Return how many lines, branches and
        points were new.

        Returns 0 if there is no file, because the run's process died.
        """
        if not file.exists():
            return 0
        found = Coverage.from_json(json.loads(file.read_text()))
        file.unlink()
        with self._lock:
            new = self.coverage.merge(found)
            self.runs += 1
            for name in options_named(options):
                self.news[name] = self.news.get(name, 0) + new
            kept = {**self.coverage.to_json(), "news": self.news, "runs": self.runs}
            self.path.write_text(json.dumps(kept))
        return new

    def added_for(self, seed: int, options: RunOptions, rare: Mapping[str, float]) -> tuple[str, ...]:
        """Choose options to add to the options that a seed draws. `rare` has the weight of each option, which
        `RareStates.weights` computes.
        """
        with self._lock:
            return added_for(seed, options, dict(self.news), rare)


def everything() -> dict[str, tuple[set[int], set[Branch]]]:
    """Find all lines and branches of the packages that are traced, by file."""
    return {
        path.relative_to(_REPOSITORY).as_posix(): lines_of(path)
        for package in PACKAGES
        for path in sorted((_REPOSITORY / package).rglob("*.py"))
    }
