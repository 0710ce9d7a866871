"""`python -m sim --census DIR`: prints the named states of the product that the runs of a campaign have reached.
SHELL.

The exit status is 4 if the runs have missed a state that is marked as certain. It is also 4 if 2,000 seeds have missed
a state that is neither in `DRIVEN` nor in `UNREACHABLE` (`sim.census.states`). It is 64 after a wrong command line, and
otherwise 0.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sim.campaign.results import Results
from sim.census.tally import ALL_SEEDS, CERTAIN_SEEDS, Tally, report_of, screen_of

USAGE = 64
UNREACHED = 4
"""The exit status if runs have missed a state that they should have reached."""

__all__ = ["UNREACHED", "main", "missed_by"]


def missed_by(results: Results, commit: str) -> list[str]:
    """List the certain states (`CERTAIN`) that no run of this commit has reached. Only runs with the profile
    `default` count.
    """
    outcomes = results.outcomes.values()
    return Tally.of(
        each for each in outcomes if each.commit == commit and each.profile == "default"
    ).certain_missing()


def main(arguments: list[str]) -> int:
    """Print the census of a campaign's directory, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m sim", description="The named states that a campaign has reached."
    )
    parser.add_argument("--census", type=Path, metavar="DIR", required=True, help="directory of the campaign")
    parser.add_argument("--commit", help="only the runs of this commit (default: all)")
    given = parser.parse_args(arguments)
    try:
        results = Results.parse((given.census / "results.jsonl").read_text().splitlines())
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return USAGE
    outcomes = [each for each in results.outcomes.values() if given.commit in (None, each.commit)]
    tally = Tally.of(outcomes)
    for line in (*report_of(tally), "", *screen_of(tally)):
        print(line)
    print(
        f"frequent: {len(tally.may_be_certain())} states may be marked as certain: "
        + ", ".join(tally.may_be_certain())
    )
    if tally.seeds < CERTAIN_SEEDS:
        print(f"skipped:  the check for missed states, because {tally.seeds} seeds are too few")
    unexplained = tally.seeds >= ALL_SEEDS and tally.unexplained()
    return UNREACHED if tally.certain_missing() or unexplained else 0
