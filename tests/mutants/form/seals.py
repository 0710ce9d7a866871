"""Seals: the normal form and the hash of each mutant's functions, from when a person last reviewed them.

If the function of a mutant changes, the planted change may no longer be a bug, and the hunt would miss it for that
reason. So the mutant is refused until somebody has reviewed it and sealed the function again with `python -m
tests.mutants --seal NAME`.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from tests.mutants.form.normal import is_same, normal_text

FOLDER = Path(__file__).parent.parent / "seals"
"""The folder with a file for each area, which has the normal form of each mutated function."""
_HEAD = "== "


class Stale(AssertionError):
    """The function of a mutant is no longer the sealed one. The message shows the difference."""


@attrs.frozen
class Seal:
    """The reviewed normal form of a function, and the mutants that use it."""

    function: str
    text: str
    mutants: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Return the hash of the text, by which a seal that was edited by hand is noticed."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def written(self) -> str:
        """Return the text of the seal for its file."""
        return f"{_HEAD}{self.function}\n{self.digest} {' '.join(self.mutants)}\n\n{self.text}\n"

    def check(self) -> None:
        """Raise `Stale` unless the function is still the sealed one."""
        try:
            present = normal_text(self.function)
        except (ImportError, AttributeError, TypeError) as error:
            raise Stale(
                f"{', '.join(self.mutants)}: {self.function} is gone ({error}). It was\n\n{self.text}"
            ) from error
        if not is_same(self.text, present):
            raise Stale(
                f"{', '.join(self.mutants)}: {self.function} has changed:\n{difference(self.text, present)}"
            )


Seals = Mapping[tuple[str, str], Seal]
"""Seals by mutant and function."""


def difference(sealed: str, present: str) -> str:
    """Return a diff of two normal forms."""
    return "\n".join(
        difflib.unified_diff(sealed.splitlines(), present.splitlines(), "sealed", "present", lineterm="")
    )


def read(folder: Path = FOLDER) -> Seals:
    """Read all seals. Raises `Stale` if a text does not match its hash."""
    found: dict[tuple[str, str], Seal] = {}
    for path in sorted(folder.glob("*.txt")):
        for part in path.read_text().split(f"\n{_HEAD}"):
            head, digest_and_mutants, _, text = part.removeprefix(_HEAD).split("\n", 3)
            digest, *mutants = digest_and_mutants.split()
            seal = Seal(head, text.rstrip("\n"), tuple(mutants))
            if seal.digest != digest:
                raise Stale(f"{path}: {head} was edited by hand: {digest} is no longer the hash of its text")
            found.update({(mutant, head): seal for mutant in mutants})
    return found


def write(texts: Mapping[tuple[str, str, str], str], folder: Path = FOLDER) -> None:
    """Write the seals of (area, function, mutant) with these texts, and remove all others."""
    areas: dict[str, dict[tuple[str, str], list[str]]] = {}
    for (area, function, mutant), text in texts.items():
        areas.setdefault(area, {}).setdefault((function, text), []).append(mutant)
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.txt"):
        path.unlink()
    for area, seals in areas.items():
        written = (Seal(*key, tuple(sorted(names))).written() for key, names in sorted(seals.items()))
        (folder / f"{area.replace(' ', '_')}.txt").write_text("\n".join(written))


def texts_of(seals: Seals, wanted: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
    """Return the sealed text of each (area, function, mutant) that has one."""
    return {key: seals[key[2], key[1]].text for key in wanted if (key[2], key[1]) in seals}
