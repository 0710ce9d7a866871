"""One sentence that must hold under an attack, and whether it did."""

from __future__ import annotations

import attrs


@attrs.frozen
class Outcome:
    """A rule, and how an attack on it ended."""

    rule: str
    held: bool
    note: str = ""
    """Figures, codes, or the error that came."""

    def __str__(self) -> str:
        verdict = "HELD" if self.held else "HOLE"
        return f"{verdict}  {self.rule}" + (f"  ({self.note})" if self.note else "")
