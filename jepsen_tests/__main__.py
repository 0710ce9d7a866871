"""`python -m jepsen_tests`: runs three real nodes under faults with clients of librdkafka, and checks every
acknowledged record.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from jepsen_tests.checkers import check
from jepsen_tests.history import History
from jepsen_tests.network import Loopback, Network, enter_own_network, namespaces
from jepsen_tests.real_cluster import ClusterFailed
from jepsen_tests.run import Options, Result, run
from jepsen_tests.schedule import INTERVAL_SECONDS, KINDS
from jepsen_tests.systems import SYSTEMS, Unavailable

_EVIDENCE_MAX = 5
"""The most anomalies with one name that are printed."""
EXIT = {"ok": 0, "safety": 1, "liveness": 2}
EXIT_UNAVAILABLE = 3
EXIT_USAGE = 64


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line, whose options describe the run."""
    parser = argparse.ArgumentParser(prog="python -m jepsen_tests", description=(__doc__ or ""))
    parser.add_argument("--system", choices=sorted(SYSTEMS), default="odradek", help="(default: odradek)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="seconds during which faults occur (default: 60)"
    )
    parser.add_argument(
        "--nemesis",
        default=",".join(KINDS),
        help=f"faults, separated by commas: {', '.join(KINDS)}, or none (default: all faults that this machine allows)",
    )
    parser.add_argument(
        "--targets", default="", help="only these targets, e.g. one,leader (default: all; see schedule.py)"
    )
    parser.add_argument("--interval", type=float, default=INTERVAL_SECONDS, help="seconds between two faults")
    parser.add_argument(
        "--kills",
        type=int,
        default=0,
        metavar="N",
        help="kill one node with -9, N times, as the only fault and without a limit of time; clients are not replaced, and the run fails if an application sees an error",
    )
    parser.add_argument(
        "--controllers",
        type=int,
        default=0,
        metavar="N",
        help="run N separate controllers beside the three brokers (default: the brokers are the controllers)",
    )
    parser.add_argument(
        "--default-timeouts",
        action="store_true",
        help="use Kafka's defaults for the broker session (9 s) and the replica lag (30 s) instead of 4 s",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="the seed of the faults, and of the times at which clients start and stop",
    )
    parser.add_argument("--rate", type=float, default=400.0, help="sends per second (default: 400)")
    parser.add_argument(
        "--acks",
        choices=("all", "1"),
        default="all",
        help="acks of the producers; 1 shows what is lost without all (default: all)",
    )
    _add_setup(parser)
    return parser.parse_args(arguments)


def _add_setup(parser: argparse.ArgumentParser) -> None:
    """Add the options for the nodes and for the history on disk."""
    parser.add_argument("--value-bytes", type=int, default=100, help="(default: 100)")
    parser.add_argument(
        "--no-namespaces",
        action="store_true",
        help="run plain processes on loopback; links between nodes are not cut",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="property for the nodes' properties files (may be repeated)",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep data, logs and history in this new directory"
    )
    parser.add_argument(
        "--check", type=Path, metavar="FILE", help="check a history that --keep has written, and exit"
    )


def main() -> int:
    """Run the test. Return the exit status. 0: all records are there and the cluster has healed. 1: an anomaly. 2:
    the cluster has not healed. 3: the system cannot run here.
    """
    options = parse_arguments()
    if options.check is not None:
        with options.check.open() as lines:
            anomalies = check(History.from_lines(lines))
        report_anomalies([f"{each.name} {each.key}: {each.detail}" for each in anomalies])
        print(f"verdict: {'safety' if anomalies else 'ok'}")
        return EXIT["safety" if anomalies else "ok"]
    isolated = not options.no_namespaces and enter_own_network()
    numbers = range(1, 4 + options.controllers)
    network: Network = namespaces(numbers) if isolated else Loopback()
    kinds = [kind for kind in options.nemesis.split(",") if kind not in ("", "none")]
    if not network.can_partition and "partition" in kinds:
        print("this machine allows no network namespaces, so links are not cut", file=sys.stderr)
        kinds.remove("partition")
    directory = options.keep or Path(tempfile.mkdtemp(prefix="jepsen-"))
    try:
        if options.keep:
            directory.mkdir(parents=True)
        result = run(
            SYSTEMS[options.system](),
            network,
            directory,
            Options(
                seconds=options.seconds,
                kinds=kinds,
                seed=options.seed,
                interval=options.interval,
                targets=[target for target in options.targets.split(",") if target],
                kills=options.kills,
                controllers=options.controllers,
                default_timeouts=options.default_timeouts,
                rate=options.rate,
                acks=options.acks,
                value_bytes=options.value_bytes,
                settings=dict(each.split("=", 1) for each in options.set),
            ),
            lambda text: print(text, file=sys.stderr, flush=True),
        )
    except ValueError as wrong:
        print(wrong, file=sys.stderr)
        return EXIT_USAGE
    except Unavailable as missing:
        print(f"{options.system} cannot run here: {missing}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except ClusterFailed as failure:
        print(f"{options.system} did not start: {failure}", file=sys.stderr)
        return EXIT["liveness"]
    finally:
        network.close()
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    if options.keep:
        (directory / "history.jsonl").write_text("".join(f"{line}\n" for line in result.history.to_lines()))
    report(result)
    return EXIT[result.verdict]


def report(result: Result) -> None:
    """Print anomalies, failures and figures of a run; the last line is the verdict."""
    report_anomalies([f"{each.name} {each.key}: {each.detail}" for each in result.anomalies])
    for trouble in result.troubles:
        print(f"trouble: {trouble}")
    for error, count in sorted(result.errors.items()):
        print(f"error reported to a client: {error} x{count}")
    print(f"faults: {json.dumps(result.faults)}")
    print(f"figures: {json.dumps(result.figures)}")
    print(f"verdict: {result.verdict}")


def report_anomalies(sentences: list[str]) -> None:
    """Print the first few anomalies of each name, and their number."""
    counts = Counter(sentence.split(" ", 1)[0] for sentence in sentences)
    shown: Counter[str] = Counter()
    for sentence in sentences:
        name = sentence.split(" ", 1)[0]
        shown[name] += 1
        if shown[name] <= _EVIDENCE_MAX:
            print(sentence)
    for name, count in counts.items():
        print(f"{name}: {count} in total")


if __name__ == "__main__":
    sys.exit(main())
