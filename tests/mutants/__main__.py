"""`python -m tests.mutants [NAME ...]`: look for each mutant, a line for each and a table at the end; 1 if one is missed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.mutants.bugs import MUTANTS
from tests.mutants.drivers import DRIVERS
from tests.mutants.mutant import Search, search

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def main() -> int:
    """Print as the module says."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of mutants (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, help="where to begin (default: %(default)s)")
    parser.add_argument("--seeds", type=int, help="at most so many, whatever a mutant is given")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BY_NAME]
    if unknown:
        parser.error(f"no mutant is called {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    names = options.names or list(BY_NAME)
    found: list[Search] = []
    with ProcessPoolExecutor(options.workers) as pool:
        jobs = [pool.submit(_search, name, options.first_seed, options.seeds) for name in names]
        for job in jobs:
            found.append(job.result())
            print(found[-1].line(), flush=True)
    print(table(found))
    return int(any(each.seed is None for each in found))


def _search(name: str, first_seed: int, seeds_max: int | None) -> Search:
    return search(BY_NAME[name], DRIVERS, first_seed=first_seed, seeds_max=seeds_max)


def table(found: Sequence[Search]) -> str:
    """Seeds to detection, in Markdown."""
    lines = [
        "",
        "| mutant | found by | seeds | seed | seconds | how it failed |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for each in found:
        seed = "MISSED" if each.seed is None else str(each.seed)
        verdict = each.verdict[:90].replace("|", "/")
        mutant = each.mutant
        lines.append(
            f"| {mutant.name} | {mutant.driver} | {each.seeds} | {seed} | {each.real_seconds:.1f} | {verdict} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
