"""Run attacks by hand: one in full, or all of them in turns beside ordinary clients.

    python -m tests.attacks                           # the list
    python -m tests.attacks NAME [--scale 1.0]        # one, on a node of its own
    python -m tests.attacks siege --hours 1           # all in turns, three nodes, three ordinary clients

The exit status is 0 if all held, 1 if something did not, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.attacks.known import Attack, attacks
from tests.attacks.place import attacked


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.attacks", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("name", nargs="?", help="an attack, or `siege`")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how large one attack is (default: 1, in full)"
    )
    parser.add_argument("--hours", type=float, default=1.0, help="how long the siege lasts (default: 1)")
    parser.add_argument("--keep", type=Path, help="a new directory for data and logs, kept afterwards")
    args = parser.parse_args()
    known = attacks()
    if args.name is None:
        for each in known.values():
            print(f"{each.name:20} {each.who:14} {each.purpose}")
        return 0
    if args.name != "siege" and args.name not in known:
        parser.error(f"no attack is called {args.name}: `python -m tests.attacks` lists them")
    with tempfile.TemporaryDirectory(prefix="odradek-attack-") as name:
        directory = args.keep or Path(name)
        if args.name == "siege":
            from tests.attacks.siege import lay_siege

            return lay_siege(list(known.values()), directory, args.hours * 3600)
        return _run_one(known[args.name], directory, args.scale)


def _run_one(attack: Attack, directory: Path, scale: float) -> int:
    holes = 0
    with attacked(directory, settings=attack.settings) as place:
        for outcome in attack.run(place, scale):
            print(outcome, flush=True)
            holes += not outcome.held
        place.check_alive()
    print(f"verdict: {'hole' if holes else 'held'}")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
