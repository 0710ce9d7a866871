"""The digest stated by README.md and docs/simulation.md, with which a reader can check that a seed gives the same run.

`python -m tests.sim.stated` (`make sim-digest`) runs the seed and writes the digest. Each change of the code changes
it.
"""

from __future__ import annotations

import re
from pathlib import Path

from sim.options import RunOptions
from sim.run import run

SEED = 3
PROFILE = "lite"
COMMAND = f"python -m sim --seed {SEED} --profile {PROFILE}"
PAGES = tuple(Path(__file__).parents[2] / name for name in ("README.md", "docs/simulation.md"))
_STATED = re.compile(rf"(`{COMMAND}`\s[^`]*?`digest: )([0-9a-f]{{64}})`")


def stated() -> dict[str, str]:
    """Return the stated digest by the name of the page. A page that states no digest is left out."""
    found = {}
    for page in PAGES:
        match = _STATED.search(page.read_text())
        if match is not None:
            found[page.name] = match[2]
    return found


def given() -> str:
    """Run the seed; return its digest."""
    result = run(SEED, RunOptions.draw(SEED, PROFILE))
    assert result.verdict == "ok", result.message
    return result.digest


def state(digest: str) -> None:
    """Write the digest into the pages."""
    for page in PAGES:
        page.write_text(_STATED.sub(rf"\g<1>{digest}`", page.read_text()))


if __name__ == "__main__":
    now = given()
    state(now)
    print(f"{COMMAND}: {now}")
