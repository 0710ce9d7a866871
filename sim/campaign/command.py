"""`python -m sim --campaign`: runs seeds side by side until the time is over; failures are grouped, minimised and
reported.

All results are in one directory: `results.jsonl`, `report.md`, and for each group of failures `timeline-SEED.html`.
The same command with the same directory continues after the last seed. First it repeats the seeds that failed with
another commit.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

import attrs

from sim.campaign.census import UNREACHED, missed_by
from sim.campaign.guidance import RareStates, with_added
from sim.campaign.guide import COVERED_EVERY, Guide
from sim.campaign.page import Standing, page, screen
from sim.campaign.report import report
from sim.campaign.results import Outcome, Results, Shrunk, line_of
from sim.campaign.shrinking import TRIES_MAX, shrink
from sim.campaign.workers import Worker
from sim.options import PROFILES, RunOptions
from sim.replay import replay_command
from sim.run import EXIT_STATUS, commit

USAGE = 64
INTERRUPTED = 130
PROGRESS_SECONDS = 30.0
GROUPS_EXPLAINED_MAX = 20
"""The largest number of failure groups that are minimised. More groups have most likely a common cause."""
WORST_FIRST = ("safety", "crash", "liveness")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def main(arguments: list[str]) -> int:
    """Run a campaign, and return the exit status of the worst run of this session.

    The status is 4 if no run failed, but enough seeds were run and all of them missed a certain state (`CERTAIN`).
    """
    parser = _Parser(prog="python -m sim --campaign", description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=float, default=1 / 6, help="how long to run (default: ten minutes)")
    parser.add_argument(
        "--workers", type=int, default=2, help="number of processes side by side (default: %(default)s)"
    )
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default="default",
        help="how many faults to inject (see sim/options.py)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("sim-campaign"),
        help="directory of the results (default: %(default)s)",
    )
    parser.add_argument("--first-seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--seeds", type=int, help="run at most this many seeds")
    parser.add_argument(
        "--nodes", type=int, help="number of brokers in each cluster (default: drawn from the seed)"
    )
    parser.add_argument(
        "--tries",
        type=int,
        default=TRIES_MAX,
        help="largest number of runs to minimise one failure (default: %(default)s)",
    )
    given = parser.parse_args(arguments)
    if given.workers < 1 or given.hours <= 0 or (given.nodes is not None and given.nodes < 3):
        parser.error("--workers must be at least 1, --hours more than 0, and --nodes at least 3")
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        results = _read(given.out / "results.jsonl")
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return Campaign(given, results).run()


def _read(path: Path) -> Results:
    return Results.parse(path.read_text().splitlines()) if path.exists() else Results()


def _cut_torn_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed campaign may have left. Otherwise the next line would be appended
    to it.
    """
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with path.open("r+b") as file:
                file.truncate(whole)


class Campaign:
    """One session of a campaign. `results` includes the results of earlier sessions."""

    def __init__(self, given: argparse.Namespace, results: Results) -> None:
        self._out: Path = given.out
        self._profile: str = given.profile
        self._nodes: int | None = given.nodes
        self._tries: int = given.tries
        self._commit = commit()
        self._results = results
        self._seeds = results.next_seeds(given.first_seed, self._commit)
        self._left: int | None = given.seeds
        self._began = time.monotonic()
        self._ends_at = self._began + given.hours * 3600
        self._workers = [Worker(number, self._commit) for number in range(given.workers)]
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._fresh: list[Worker] = []
        """Workers that replay a minimised run in a new process."""
        self._explained = dict.fromkeys(results.shrunk)
        self._session: list[Outcome] = []
        self._guide = Guide.read(self._out / "coverage.json")
        self._rare = RareStates.of(results.outcomes.values())
        self._before = Standing.of(results, self._guide)
        self._next_progress = self._began + PROGRESS_SECONDS

    def run(self) -> int:
        """Run seeds until the time is over and every new failure is minimised. Return the exit status."""
        known = len(self._results.outcomes)
        print(f"campaign: commit {self._commit}, profile {self._profile}, {known} seeds known in {self._out}")
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        pool = ThreadPoolExecutor(len(self._workers))
        try:
            self._run(pool)
        except KeyboardInterrupt:
            # Ignore a second interrupt, since the report must still be written.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            for worker in (*self._workers, *self._fresh):
                worker.stop()
            print("campaign: interrupted; repeat the command to continue after the last finished seed")
            return INTERRUPTED
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for worker in self._workers:
                worker.close()
            self._write_report()
        for line in screen(Standing.of(self._results, self._guide), self._before, self._session):
            print(line)
        print(f"report: {self._out / 'report.md'}")
        self._print_progress()
        failed = [outcome.verdict for outcome in self._session if outcome.verdict != "ok"]
        worst = next((EXIT_STATUS[verdict] for verdict in WORST_FIRST if verdict in failed), 0)
        is_judged = self._profile == "default" and self._nodes is None
        return worst or (UNREACHED if is_judged and missed_by(self._results, self._commit) else 0)

    def _run(self, pool: ThreadPoolExecutor) -> None:
        pending: set[Future[Any]] = set()
        path = self._out / "results.jsonl"
        _cut_torn_line(path)
        with path.open("a") as file:
            while True:
                while len(pending) < len(self._workers) and self._has_time():
                    seed = next(self._seeds)
                    pending.add(pool.submit(self._run_seed, seed, self._added(seed)))
                if not pending:
                    return
                done, pending = wait(pending, PROGRESS_SECONDS, FIRST_COMPLETED)
                for future in done:
                    found: Outcome | Shrunk = future.result()
                    self._results.add(found)
                    file.write(line_of(found))
                    file.flush()
                    if isinstance(found, Shrunk):
                        print(
                            f"explained: {found.signature}\n  repeat with: {found.command}\n  see {found.timeline}"
                        )
                        self._write_report()
                    elif self._note(found):
                        pending.add(pool.submit(self._explain, found))
                if time.monotonic() >= self._next_progress:
                    self._next_progress = time.monotonic() + PROGRESS_SECONDS
                    self._print_progress()

    def _has_time(self) -> bool:
        if self._left == 0 or time.monotonic() >= self._ends_at:
            return False
        if self._left is not None:
            self._left -= 1
        return True

    def _note(self, outcome: Outcome) -> bool:
        """Record a run's outcome. Return True if it is the first of its failure group and must be minimised."""
        self._session.append(outcome)
        self._rare.add(outcome)
        if outcome.verdict == "ok":
            return False
        print(f"{outcome.verdict}: seed {outcome.seed}: {outcome.signature}", flush=True)
        if outcome.signature in self._explained or len(self._explained) >= GROUPS_EXPLAINED_MAX:
            return False
        self._explained[outcome.signature] = None
        return not outcome.alone

    def _options(self, seed: int) -> RunOptions:
        return RunOptions.draw(seed, self._profile, nodes=self._nodes)

    def _added(self, seed: int) -> tuple[str, ...]:
        """Choose options to add to the options that the seed draws. A repeated seed gets the same additional options
        again.
        """
        known = self._results.outcomes.get(seed)
        if known is not None:
            return known.added
        return self._guide.added_for(seed, self._options(seed), self._rare.weights())

    def _run_seed(self, seed: int, added: tuple[str, ...]) -> Outcome:
        options = with_added(self._options(seed), added)
        worker = self._idle.get()
        try:
            if seed % COVERED_EVERY:
                return attrs.evolve(worker.run(seed, options, parts=True), added=added)
            file = self._out / f"coverage-{seed}.json"
            outcome = worker.run(seed, options, coverage=str(file.resolve()))
            self._guide.learn(file, options)
            return attrs.evolve(outcome, added=added, covered=True)
        finally:
            self._idle.put(worker)

    def _explain(self, outcome: Outcome) -> Shrunk:
        """Find the smallest options with which the run still fails in the same way. Replay the run with these options
        in a new process.
        """
        seed = outcome.seed
        worker = self._idle.get()
        digests = {"": outcome.digest}

        def still_fails(options: RunOptions) -> bool:
            found = worker.run(seed, options)
            digests[options.to_json()] = found.digest
            return found.signature == outcome.signature

        try:
            smaller = shrink(with_added(self._options(seed), outcome.added), still_fails, self._tries)
        finally:
            self._idle.put(worker)
        text = smaller.options.to_json()
        timeline = f"timeline-{seed}.html"
        fresh = Worker(len(self._workers) + seed % 1000, self._commit)
        self._fresh.append(fresh)
        try:
            again = fresh.run(seed, smaller.options, str((self._out / timeline).resolve()))
        finally:
            fresh.close()
            self._fresh.remove(fresh)
        return Shrunk(
            seed,
            outcome.signature,
            text,
            smaller.taken_away,
            smaller.runs,
            again.digest == digests.get(text, outcome.digest),
            replay_command(seed, smaller.options),
            timeline,
        )

    def _print_progress(self) -> None:
        real = time.monotonic() - self._began
        virtual = sum(outcome.virtual_seconds for outcome in self._session)
        failed = sum(outcome.verdict != "ok" for outcome in self._session)
        print(
            f"progress: {len(self._session)} seeds, {failed} failed, {virtual:.0f} virtual s in {real:.0f} real s",
            flush=True,
        )

    def _write_report(self) -> None:
        real = time.monotonic() - self._began
        uncovered = [outcome for outcome in self._session if not outcome.covered]
        text = report(self._results, self._commit, len(self._workers), real, uncovered)
        text += page(Standing.of(self._results, self._guide), self._before)
        (self._out / "report.md").write_text(text)
