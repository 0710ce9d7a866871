"""Seals: what each mutant's functions were when a person last looked at them, and their hashes.

A mutant is sound, and missed for the wrong reason, once its function has changed so that the bug is no bug any more. So it
is refused until somebody has looked, and `python -m tests.mutants --seal NAME` has written the function down again.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from tests.mutants.form.normal import is_same, normal_text

FOLDER = Path(__file__).parent.parent / "seals"
"""A file for each area, with the normal form of each function that has a mutant."""
_HEAD = "== "


class Stale(AssertionError):
    """A mutant whose function is no longer the sealed one. The message shows the difference."""


@attrs.frozen
class Seal:
    """The normal form of a function as somebody has seen it, for these mutants."""

    function: str
    text: str
    mutants: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The hash of the text, by which a seal that was edited by hand is known."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def written(self) -> str:
        """Return the seal as it stands in a file."""
        return f"{_HEAD}{self.function}\n{self.digest} {' '.join(self.mutants)}\n\n{self.text}\n"

    def check(self) -> None:
        """Raise `Stale` unless the function is what it was."""
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
    """Read all seals. Raises `Stale` if the text of one does not have its hash."""
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
    """Write the seals of (area, function, mutant) with these texts; forget all other seals."""
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
    """Return the sealed texts of (area, function, mutant), as far as there are any."""
    return {key: seals[key[2], key[1]].text for key in wanted if (key[2], key[1]) in seals}
