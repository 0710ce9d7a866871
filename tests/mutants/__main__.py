"""`python -m tests.mutants [NAME ...]`: look for each mutant, a line for each and a page at the end.

A mutant is looked for as a campaign would find it: with the options that seeds draw, for `CPU_SECONDS_MAX`. What is not
found is looked for with the driver that is aimed at it. The exit status is 1 if a mutant is missed, or found by its
aimed driver, though nothing says why.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.mutants.bugs import BY_NAME
from tests.mutants.drivers import DRIVERS
from tests.mutants.form.normal import normal_text
from tests.mutants.mutant import CAMPAIGN, Search, search
from tests.mutants.sealing import seal, stale

CPU_SECONDS_MAX = 120.0


def main() -> int:
    """Print as the module says."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of mutants (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, help="where to begin (default: %(default)s)")
    parser.add_argument("--seeds", type=int, help="at most so many, whatever a mutant is given")
    parser.add_argument("--aimed", action="store_true", help="the aimed drivers alone")
    parser.add_argument(
        "--seal", action="store_true", help="write down the functions of these mutants as they are now"
    )
    parser.add_argument("--all", action="store_true", help="with --seal: those of all mutants")
    parser.add_argument(
        "--stale", action="store_true", help="show the mutants whose functions have changed since, and how"
    )
    parser.add_argument("--show", metavar="FUNCTION", help="show package.module:function as changes see it")
    options = parser.parse_args()
    if options.show:
        print(normal_text(options.show))
        return 0
    if options.stale:
        print("\n\n".join(stale().values()))
        return 0
    unknown = [name for name in options.names if name not in BY_NAME]
    if unknown:
        parser.error(f"no mutant is called {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    names = options.names or list(BY_NAME)
    if options.seal:
        if not options.names and not options.all:
            parser.error("--seal takes names, or --all")
        print("\n".join(seal(names)))
        return 0
    found: list[Search] = []
    with ProcessPoolExecutor(options.workers) as pool:
        jobs = [
            pool.submit(_search, name, options.first_seed, options.seeds, aimed=options.aimed)
            for name in names
        ]
        for job in jobs:
            found.append(job.result())
            print(f"{found[-1].line()} {found[-1].driver} {found[-1].cpu_seconds:.0f} s", flush=True)
    print(page(found))
    return int(any(is_missed(each, aimed=options.aimed) for each in found))


def is_missed(found: Search, *, aimed: bool = False) -> bool:
    """True for a mutant that all drivers have missed, or that campaigns have, though they must find it."""
    if found.seed is None:
        return not found.mutant.unseen
    return not (aimed or found.mutant.aimed_only or found.mutant.unseen or found.driver == CAMPAIGN)


def _search(name: str, first_seed: int, seeds_max: int | None, *, aimed: bool) -> Search:
    mutant = BY_NAME[name]
    if not aimed:
        found = search(
            mutant,
            DRIVERS,
            driver=CAMPAIGN,
            first_seed=first_seed,
            seeds_max=seeds_max,
            cpu_seconds_max=CPU_SECONDS_MAX,
        )
        if found.seed is not None:
            return found
    return search(mutant, DRIVERS, first_seed=first_seed, seeds_max=seeds_max)


def page(found: Sequence[Search]) -> str:
    """What campaigns have not found, and a table of all, in Markdown."""
    aimed = [each for each in found if each.seed is not None and each.driver != CAMPAIGN]
    missed = [each for each in found if each.seed is None]
    areas: dict[str, int] = {}
    for each in found:
        areas[each.mutant.area] = areas.get(each.mutant.area, 0) + (each.seed is not None)
    lines = [
        "",
        f"{len(found)} mutants, {len(found) - len(aimed) - len(missed)} of them found as a campaign runs: "
        + ", ".join(f"{name} {count}" for name, count in sorted(areas.items())),
        "",
        *(f"* aimed driver only: {each.mutant.name}: {each.mutant.aimed_only or '?'}" for each in aimed),
        *(f"* not seen: {each.mutant.name}: {each.mutant.unseen or '?'}" for each in missed),
        "",
    ]
    return "\n".join(lines) + table(found)


def table(found: Sequence[Search]) -> str:
    """Seeds and seconds to detection, in Markdown."""
    lines = [
        "",
        "| mutant | area | found by | seeds | seed | CPU s | how it failed |",
        "| --- | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for each in found:
        seed = "MISSED" if each.seed is None else str(each.seed)
        verdict = each.verdict[:90].replace("|", "/")
        lines.append(
            f"| {each.mutant.name} | {each.mutant.area} | {each.driver} | {each.seeds} | {seed} "
            f"| {each.cpu_seconds:.1f} | {verdict} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
