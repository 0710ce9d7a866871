"""The mirror, which copies topics of one cluster to another, exactly once, with keys, headers, timestamps and
partitions.

Each cluster may be Apache Kafka or Odradek. The job copies all records that the source has when the job starts, and
then ends. With `--follow` it runs for ever. If the job is killed at any moment, start it again: it continues where it
stopped. Readers at read_committed see each record exactly once.

    odradek mirror --source old:9092 --target new:9092 --topic 'orders*' --plan
    odradek mirror --source old:9092 --target new:9092 --topic 'orders*' --group '*'

`--plan` prints what the job would create in the target, and what it cannot copy. `--group` translates the offsets of
groups after everything is copied. `--map` prints the offset map. The job needs neither Spark nor Java.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from odradek import Admin, KafkaError
from odradek.client.core.client_keys import ProducerSettings
from odradek.client.errors import ClientError
from odradek.spark.pipelines.failure import Failed
from odradek.spark.pipelines.mirror.copying import Limits, Mirror, Progress, map_topic, read_map
from odradek.spark.pipelines.mirror.groups import translate_groups
from odradek.spark.pipelines.mirror.offset_map import TopicPair
from odradek.spark.pipelines.mirror.plan import ClusterFacts, Plan, plan_of
from odradek.spark.pipelines.mirror.surveys import perform, survey
from odradek.spark.pipelines.progress import ProgressLine

__all__ = ["main"]

_COMMON = ("security.", "sasl.", "ssl.", "client.id", "request.timeout.ms", "default.api.timeout.ms")
_CONTROLLERS = "odradek.controller."
"""The prefix of some keys in the files that `odradek dev --secure` writes. These keys are for the controllers'
listener, so the mirror ignores them.
"""
_LINE_SECONDS = 10.0


@attrs.frozen
class _Cluster:
    """One cluster: the configuration keys for all its clients, and additional keys for its producer."""

    keys: dict[str, str] = attrs.field(repr=False)
    producer_keys: dict[str, str]

    def admin(self) -> Admin:
        return Admin(self.keys)


def _cluster(bootstrap: str, config: Path | None) -> _Cluster:
    """Make the keys for one cluster from its address and its configuration file. Raises `Failed`."""
    keys = {"bootstrap.servers": bootstrap}
    others = {}
    for key, value in ({} if config is None else _properties(config)).items():
        if key.startswith(_COMMON):
            keys[key] = value
        elif key != "bootstrap.servers" and not key.startswith(_CONTROLLERS):
            others[key] = value
    return _Cluster(keys, others)


def _properties(path: Path) -> dict[str, str]:
    """Read a file with lines of the form KEY=VALUE. Raises `Failed`."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"{path} cannot be read: {error}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, sign, value = text.partition("=")
        if not sign or text.endswith("\\"):
            raise Failed(f"{path}, line {number}: expected KEY=VALUE on one line")
        found[key.strip()] = value.strip()
    return found


class _Screen:
    """The display of the progress in one line: records copied, records per second, lag, and the estimated time left."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self._started = self._stepped = time.monotonic()
        self._first: int | None = None

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = progress.lag
        text = f"{progress.records:,} records, {progress.records / (now - self._started):,.0f}/s, lag {progress.lag:,}"
        done = self._first - progress.lag
        if progress.lag and done > 0:
            left = int(progress.lag * (now - self._started) / done)
            text += f", ETA {left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
        if now - self._stepped > _LINE_SECONDS:
            self._stepped = now
            self._line.step(text)
        else:
            self._line.show(text)


def _pairs(source: ClusterFacts, target: ClusterFacts) -> dict[TopicPair, int]:
    return {
        TopicPair(name, topic.topic_id, target.topics[name].topic_id): topic.partitions
        for name, topic in source.topics.items()
    }


class _Run:
    """One run of the command `odradek mirror`."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._line = ProgressLine("mirror")
        self._source = _cluster(arguments.source, arguments.source_config)
        self._target = _cluster(arguments.target, arguments.target_config)
        # An unknown key raises an error here, before anything is created.
        ProducerSettings.from_properties({**self._target.keys, **self._target.producer_keys})
        self._dropped: set[str] = set()

    def run(self) -> int:
        if self._arguments.map:
            return self._print_map()
        _, plan = self._facts_and_plan()
        for line in plan.lines():
            print(line)
        if self._arguments.plan:
            return 1 if plan.refusals else 0
        self._copy()
        if self._arguments.group:
            return self._translate()
        return 0

    def _print_map(self) -> int:
        print("topic\tpartition\tsource\ttarget\tcount")
        for key, run in read_map(self._target.keys, self._arguments.name, keep_runs=True).runs():
            print(key.topic, key.partition, run.source, run.target, run.count, sep="\t")
        return 0

    def _facts_and_plan(self) -> tuple[ClusterFacts, Plan]:
        arguments = self._arguments
        with self._source.admin() as source, self._target.admin() as target:
            theirs = survey(
                source, arguments.topic, with_acls=not arguments.no_acls, with_groups=bool(arguments.group)
            )
            if not theirs.topics:
                raise Failed(f"the source has no topic that matches {' '.join(arguments.topic)}")
            ours = survey(target, sorted(theirs.topics), with_acls=not arguments.no_acls)
            return theirs, plan_of(theirs, ours, group_patterns=arguments.group)

    def _ready(self) -> Mapping[TopicPair, int]:
        """Prepare the target for the present topics of the source. Return the pairs of topics, each with its number
        of partitions.
        """
        theirs, plan = self._facts_and_plan()
        if plan.refusals:
            raise Failed("; ".join(plan.refusals))
        with self._target.admin() as target:
            for sentence in perform(target, plan):
                if sentence not in self._dropped:
                    self._dropped.add(sentence)
                    self._line.step(f"lost: {sentence}")
            ours = survey(target, sorted(theirs.topics), with_acls=False)
        missing = set(theirs.topics) - set(ours.topics)
        if missing:
            raise ClientNotReady(f"the target does not show its new topics yet: {', '.join(sorted(missing))}")
        return _pairs(theirs, ours)

    def _copy(self) -> None:
        arguments = self._arguments
        mirror = Mirror(
            self._source.keys,
            self._target.keys,
            arguments.name,
            self._ready,
            producer_keys=self._target.producer_keys,
            limits=Limits(arguments.transaction_records, arguments.transaction_seconds),
            skip_lost=arguments.skip_lost,
        )
        mirror.run(_Screen(self._line).show, follow=arguments.follow, patience_seconds=arguments.patience)
        self._line.step(
            f"{mirror.records:,} records copied; the target has all records that the source had at the start"
        )
        if mirror.lost:
            self._line.step(
                f"{mirror.lost:,} offsets were deleted in the source before this mirror copied them"
            )

    def _translate(self) -> int:
        theirs, plan = self._facts_and_plan()
        offset_map = read_map(self._target.keys, self._arguments.name, keep_runs=True)
        is_whole = True
        with self._source.admin() as source, self._target.admin() as target:
            for outcome in translate_groups(source, target, offset_map, plan.groups, theirs.topics):
                self._line.step(
                    f"group {outcome.group}: {len(outcome.moved)} offsets set, {outcome.unchanged} unchanged"
                )
                for sentence in outcome.left:
                    is_whole = False
                    self._line.step(f"group {outcome.group}: {sentence}")
        return 0 if is_whole else 1


class ClientNotReady(ClientError):
    """Raised while the metadata of the target lack topics that were just created. The mirror then tries again."""

    retriable = True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="odradek mirror",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--source", required=True, metavar="HOST:PORT,...", help="brokers to copy from")
    parser.add_argument("--target", required=True, metavar="HOST:PORT,...", help="brokers to copy to")
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}-config",
            type=Path,
            metavar="FILE",
            help=f"Kafka's client keys for the {side}, KEY=VALUE lines",
        )
    parser.add_argument(
        "--topic",
        action="append",
        metavar="PATTERN",
        help="topics, as 'orders*'; may be repeated (default: all)",
    )
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="PATTERN",
        help="translate the offsets of these groups",
    )
    parser.add_argument(
        "--name",
        default="default",
        help="name of this mirror; only one process at a time may use it (%(default)s)",
    )
    parser.add_argument(
        "--plan",
        "--dry-run",
        action="store_true",
        help="print the topics, groups and ACLs that would be created, and what cannot be copied",
    )
    parser.add_argument(
        "--map", action="store_true", help="print the offset map of the mirror with this --name"
    )
    parser.add_argument("--follow", action="store_true", help="run until it is stopped")
    parser.add_argument("--no-acls", action="store_true", help="leave ACLs alone")
    parser.add_argument(
        "--skip-lost", action="store_true", help="continue even if the source has lost records"
    )
    parser.add_argument("--transaction-records", type=int, default=100_000, help="(%(default)s)")
    parser.add_argument("--transaction-seconds", type=float, default=5.0, help="(%(default)s)")
    parser.add_argument(
        "--patience",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="seconds without any progress, after which the job fails (%(default)s)",
    )
    return parser


def _checked(arguments: argparse.Namespace) -> argparse.Namespace:
    """Check the arguments, and return them. Raises `Failed` for invalid values."""
    arguments.topic = arguments.topic or ["*"]
    name = arguments.name
    if (
        not name
        or len(name) > 100
        or not all(each.isascii() and (each.isalnum() or each in "._-") for each in name)
    ):
        raise Failed("--name may have only letters, digits, '.', '_' and '-', and at most 100 characters")
    if arguments.transaction_records < 1 or not 0 < arguments.transaction_seconds <= 30:
        raise Failed(
            "--transaction-records must be at least 1, and --transaction-seconds above 0 and at most 30"
        )
    if arguments.follow and arguments.group:
        raise Failed(
            "--group translates offsets at the end, which --follow never reaches: run the job again "
            "without --follow"
        )
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    arguments = _parser().parse_args(words)
    try:
        return _Run(_checked(arguments)).run()
    except (Failed, KafkaError, ClientError, ValueError) as failure:
        print(f"mirror: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "mirror: interrupted; start the mirror again to continue (its map is "
            f"{map_topic(arguments.name)})",
            file=sys.stderr,
        )
        return 130


if __name__ == "__main__":
    sys.exit(main())
