"""Commands for the seals of mutants: write them, show what has changed, show a function's normal form."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.bugs import BY_NAME, MUTANTS
from tests.mutants.form.normal import normal_text
from tests.mutants.form.seals import Stale, read, texts_of, write


def seal(names: Sequence[str]) -> list[str]:
    """Seal the present functions of these mutants. Return a line for each. Raise `Misfit` if a change does not fit."""
    seals = read()
    texts = texts_of(seals, [key for mutant in MUTANTS for key in mutant.seal_keys()])
    lines = []
    for name in names:
        mutant = BY_NAME[name]
        mutant.bodies()
        for area, function, _ in mutant.seal_keys():
            texts[area, function, name] = normal_text(function)
        lines.append(f"{name} sealed")
    write(texts)
    return lines


def stale() -> dict[str, str]:
    """Return, for each stale mutant, how its function has changed."""
    seals = read()
    found = {}
    for mutant in MUTANTS:
        try:
            mutant.check_seals(seals)
            mutant.bodies()
        except KeyError:
            found[mutant.name] = f"{mutant.name} has never been sealed"
        except (Stale, ValueError) as error:
            found[mutant.name] = str(error)
    return found
