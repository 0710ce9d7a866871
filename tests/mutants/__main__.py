"""`python -m tests.mutants [NAME ...]` looks for mutants. It prints a line for each that it finds, and a page at the
end.

The hunt works like a campaign: for each seed a mutant runs in a cluster with drawn options, or in schedules of single
parts. Aimed drivers then look for the mutants that are left. All share a budget of CPU time. The outcomes are kept in a
file, so the same command resumes where it stopped, as long as the code is the same. The exit status is 1 if campaigns
have missed a mutant for which no reason is given.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.mutants.bugs import BY_NAME, MUTANTS
from tests.mutants.form.normal import normal_text
from tests.mutants.hunt import results
from tests.mutants.hunt.book import ROOT, Book
from tests.mutants.hunt.hunt import Hunt, Scope
from tests.mutants.sealing import seal, stale

CPU_MINUTES = 165.0
"""The CPU time of 90 minutes on two cores, less a twelfth for starting processes."""
PART_SEEDS, CLUSTER_SEEDS = 6, 24
"""How many seeds unchanged code runs first, once for all mutants: with single parts, and with clusters."""


def main() -> int:
    """Run the command that the options choose."""
    parser = _parser()
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BY_NAME]
    if unknown:
        parser.error(f"no mutant is called {', '.join(unknown)}; `--list` shows all")
    if options.show:
        print(normal_text(options.show))
    elif options.stale:
        print("\n\n".join(stale().values()))
    elif options.list:
        print("\n".join(f"{mutant.name}: {mutant.history}" for mutant in MUTANTS))
    elif options.seal:
        if not options.names and not options.all:
            parser.error("--seal takes names, or --all")
        print("\n".join(seal(options.names or list(BY_NAME))))
    elif options.table:
        book = Book(options.results, keeps_all=options.keep)
        merged = results.merged(results.read(), book)
        results.write(merged)
        results.write_page(merged)
    else:
        return _hunt(options)
    return 0


def _hunt(options: argparse.Namespace) -> int:
    names = options.names or [m.name for m in MUTANTS if m.is_blind or not options.blind]
    scope = Scope(
        names,
        options.part_seeds,
        options.cluster_seeds,
        60 * options.cpu_minutes,
        options.workers,
        is_aimed=not options.no_aimed,
    )
    book = Book(options.results, keeps_all=options.keep)
    for outcome in Hunt(scope, book).run():
        if outcome.verdict:
            name = outcome.mutant or "sound code"
            print(
                f"{name} found at {outcome.step}: {outcome.verdict[:120]} ({outcome.cpu_seconds:.0f} s)",
                flush=True,
            )
    merged = results.merged({name: results.Result(name, results.UNTRIED) for name in BY_NAME}, book)
    print(results.page({**merged}))
    print(f"{book.cpu_seconds:.0f} CPU s, {sum(each.is_campaigns for each in merged.values())} found")
    return int(any(results.is_unexplained(merged[name]) for name in names))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="of mutants (default: all)")
    add("--workers", type=int, default=2, help="processes (default: %(default)s)")
    add(
        "--cpu-minutes",
        type=float,
        default=CPU_MINUTES,
        help="the budget of all together (default: %(default)s)",
    )
    add("--part-seeds", type=int, default=PART_SEEDS, help="seeds of parts alone (default: %(default)s)")
    add("--cluster-seeds", type=int, default=CLUSTER_SEEDS, help="seeds of clusters (default: %(default)s)")
    add(
        "--blind",
        action="store_true",
        help="those alone that were planted by somebody who had read no checker",
    )
    add("--no-aimed", action="store_true", help="without the drivers that are aimed at a mutant")
    add(
        "--results",
        type=Path,
        default=ROOT / ".cache" / "mutants.jsonl",
        help="what has come out (default: %(default)s)",
    )
    add("--keep", action="store_true", help="take outcomes of other code for those of the present one")
    add(
        "--table",
        action="store_true",
        help="write tests/mutants/results.tsv and docs/simulation-findings.md from them",
    )
    add("--list", action="store_true", help="print the names of all mutants")
    add("--seal", action="store_true", help="write down the functions of these mutants as they are now")
    add("--all", action="store_true", help="with --seal: those of all mutants")
    add("--stale", action="store_true", help="show the mutants whose functions have changed since, and how")
    add("--show", metavar="FUNCTION", help="print package.module:function as changes see it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
