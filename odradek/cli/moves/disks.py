"""`odradek disk retire|balance`: move replicas between the directories of a broker, cordon a directory, release
it when empty.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from odradek.cli.connecting import call_failure, connected
from odradek.cli.failure import CliError
from odradek.cli.moves.directory_configs import (
    CORDONED_KEY,
    RATE_KEY,
    CopyThrottle,
    append,
    broker_configs,
    cordoned_paths,
    is_no_throttle,
    listed_paths,
    put_rate_back,
    replace,
    set_broker_configs,
    subtract,
)
from odradek.cli.moves.over_hosts import balance_over_hosts
from odradek.cli.moves.plans import byte_count
from odradek.cli.output import bytes_text, counted, print_json, print_table, say, span_text
from odradek.cli.parsing import Groups, add_command, add_connection_options, id_number

if TYPE_CHECKING:
    from odradek.client.admin import LogDirDescription
    from odradek.client.admin.moves.disk_plans import Disk, DiskMove
    from odradek.client.shells.blocking import Client

__all__ = ["register_moves"]

LOOK_SECONDS = 1.0
RELEASE_SECONDS = 30.0
CALM_LOOKS = 4
"""The number of successive checks that must find no move before the command ends. One check is not enough,
because another command that cancels a retirement may still request moves.
"""
MOVES_AT_ONCE = 500
"""The maximum number of moves that the command requests from one check to the next."""
_ASSUMED_RATE = 100 << 20
_LINES_MAX = 40


def register_moves(commands: Groups) -> None:
    """Add the commands `retire` and `balance` to the group `disk`."""
    retire = add_command(commands, "retire", _retire, "empty a log directory, so that its disk may be pulled")
    retire.add_argument(
        "directory",
        metavar="BROKER:DIR",
        type=_broker_directory,
        help="the directory to empty, like 1:/disks/3",
    )
    retire.add_argument(
        "--keep",
        action="store_true",
        help="keep the empty directory in use, but cordoned (default: the broker stops using it)",
    )
    retire.add_argument(
        "--cancel",
        action="store_true",
        help="cancel the retirement: the directory accepts replicas again; replicas that have moved stay where they are",
    )
    _add_options(retire)
    balance = add_command(
        commands, "balance", _balance, "spread replicas evenly over the directories of brokers"
    )
    balance.add_argument(
        "--broker",
        type=id_number,
        action="append",
        metavar="ID",
        help="balance only this broker (repeat for more)",
    )
    balance.add_argument(
        "--over-hosts",
        action="store_true",
        help="move replicas from one broker to another, until all use equal shares of their disks",
    )
    _add_options(balance)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="show what would move, and change nothing")
    parser.add_argument(
        "--throttle",
        type=byte_count,
        metavar="BYTES",
        help="let each broker copy at most this many bytes a second, for example 50M",
    )
    add_connection_options(parser, plans=True)


def _broker_directory(text: str) -> tuple[int, str]:
    broker, colon, path = text.partition(":")
    if not colon or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not BROKER:DIR, for example 1:/disks/3")
    return id_number(broker), path


# -- the disks of a cluster --------------------------------------------------------------------------------------------


def _directories(client: Client, broker: int, *, with_health: bool = False) -> tuple[LogDirDescription, ...]:
    cluster = client.admin.describe_cluster(include_fenced=True)
    known = [each.node_id for each in cluster.brokers]
    if broker not in known:
        raise CliError(f"there is no broker {broker} (brokers: {', '.join(map(str, known))})")
    (described,) = client.admin.describe_log_dirs([broker], include_cleaning=with_health)
    if described.error is not None:
        raise call_failure(described.error)
    return described.directories


def _metadata_directory(configs: Mapping[str, str]) -> str:
    """Find the directory of the metadata log: the value of `metadata.log.dir`, or else the first of
    `log.dirs` (Kafka's rule).
    """
    first = listed_paths(configs.get("log.dirs", "") or configs.get("log.dir", ""))
    return configs.get("metadata.log.dir", "") or (first[0] if first else "")


# -- the commands ------------------------------------------------------------------------------------------------------


def _retire(args: argparse.Namespace) -> int:
    from odradek.client.admin.moves.disk_plans import disks_of, plan_disk_retirement
    from odradek.client.admin.moves.placement import CannotPlan
    from odradek.serving.disk_troubles import RETIRING_LOG_DIRS

    broker, path = args.directory
    with connected(args) as client:
        directories, configs = _directories(client, broker, with_health=True), broker_configs(client, broker)
        found = _check_directory(directories, broker, path)
        if found.health is not None and found.health.is_released:
            if args.cancel:
                raise CliError(
                    f"broker {broker} has released {path} already: its next start takes the directory back"
                )
            return _print_emptied(args, [])
        if args.cancel:
            return _cancel(client, args, configs)
        if _metadata_directory(configs) == path:
            raise CliError(
                f"{path} holds the metadata log of broker {broker}, so it cannot be emptied while the "
                "broker runs: drain the broker (`odradek broker drain`), or give its controller a new "
                "disk (docs/cluster.md)"
            )
        cordoned = cordoned_paths(configs, directories)
        try:
            moves = plan_disk_retirement(disks_of(directories, cordoned), path)
        except CannotPlan as error:
            raise CliError(f"{path} of broker {broker} cannot be emptied: {error}") from error
        if args.dry_run:
            _print_plan(args, broker, moves)
            return 0
        if path not in cordoned:
            marks = [append(RETIRING_LOG_DIRS, path), append(CORDONED_KEY, path)]
            set_broker_configs(client, broker, marks)
        if not args.json:
            _print_plan(args, broker, moves)

        def again(disks: list[Disk]) -> list[DiskMove]:
            return plan_disk_retirement(disks, path)

        _carry_out(client, args, broker, again, emptied=path)
        if not args.keep:
            _release(client, broker, path)
    return _print_emptied(args, moves)


def _release(client: Client, broker: int, path: str) -> None:
    """Have the broker release an empty directory; then remove the retirement from the broker's configuration."""
    from odradek.serving.disk_troubles import RELEASED_LOG_DIRS, RETIRING_LOG_DIRS

    set_broker_configs(client, broker, [append(RELEASED_LOG_DIRS, path)])
    deadline = time.monotonic() + RELEASE_SECONDS
    while not _is_released(client, broker, path):
        if time.monotonic() > deadline:
            raise CliError(
                f"{path} of broker {broker} is empty, but the broker has not released it: its log says "
                "why (log_dir.not_released). Stop the broker before you pull the disk"
            )
        time.sleep(LOOK_SECONDS / 4)
    changes = [subtract(RELEASED_LOG_DIRS, path)]
    if path in listed_paths(broker_configs(client, broker).get(RETIRING_LOG_DIRS, "")):
        changes += [subtract(RETIRING_LOG_DIRS, path), subtract(CORDONED_KEY, path)]
    set_broker_configs(client, broker, changes)


def _is_released(client: Client, broker: int, path: str) -> bool:
    found = next((each for each in _directories(client, broker, with_health=True) if each.path == path), None)
    return found is not None and found.health is not None and found.health.is_released


def _print_emptied(args: argparse.Namespace, moves: Sequence[DiskMove]) -> int:
    broker, path = args.directory
    if args.json:
        print_json(
            {
                "broker": broker,
                "directory": path,
                "empty": True,
                "released": not args.keep,
                "moves": [_document(each) for each in moves],
            }
        )
    elif args.keep:
        say(f"{path} of broker {broker} is empty and accepts no replicas, but the broker has not released it")
    else:
        say(f"{path} of broker {broker} is empty, and the broker has released it: its disk may be pulled")
        say("before the broker's next start, take the directory out of log.dirs, or put a new disk there")
    return 0


def _check_directory(directories: Sequence[LogDirDescription], broker: int, path: str) -> LogDirDescription:
    found = next((each for each in directories if each.path == path), None)
    if found is None:
        listed = ", ".join(each.path for each in directories)
        raise CliError(f"broker {broker} has no directory {path} (it has {listed})")
    if found.error is not None and not (found.health is not None and found.health.is_released):
        raise CliError(
            f"{path} of broker {broker} is offline, so nothing can be moved from it: its replicas are "
            "copied from other brokers"
        )
    return found


def _cancel(client: Client, args: argparse.Namespace, configs: Mapping[str, str]) -> int:
    from odradek.serving.disk_troubles import RETIRING_LOG_DIRS

    broker, path = args.directory
    if path not in listed_paths(configs.get(RETIRING_LOG_DIRS, "")):
        raise CliError(f"{path} of broker {broker} is not being retired")
    directories = _directories(client, broker)
    leaving = _leaving(directories, path)
    if not args.dry_run:
        kept = subtract(CORDONED_KEY, path)
        if listed_paths(configs.get(CORDONED_KEY, "")) == ["*"]:
            others = [each.path for each in directories if each.path != path]
            kept = replace(CORDONED_KEY, ",".join(others) or None)
        set_broker_configs(client, broker, [subtract(RETIRING_LOG_DIRS, path), kept])
        _stay(client, broker, path)
        # Restore the rate here, because the command that has set it may have been killed.
        put_rate_back(client, broker, broker_configs(client, broker))
    if args.json:
        print_json(
            {"broker": broker, "directory": path, "cancelled": not args.dry_run, "given_up": len(leaving)}
        )
        return 0
    given_up = counted(len(leaving), "move")
    if args.dry_run:
        say(f"{path} of broker {broker} would accept replicas again, with {given_up} given up")
        return 0
    say(
        f"{path} of broker {broker} accepts replicas again, with {given_up} given up; replicas "
        "that have moved stay where they are"
    )
    rate = broker_configs(client, broker).get(RATE_KEY)
    if not is_no_throttle(rate):
        say(
            f"copies are throttled to {rate} B/s: `odradek config unset broker {broker} {RATE_KEY}` ends that"
        )
    return 0


def _leaving(directories: Sequence[LogDirDescription], path: str) -> list[tuple[str, int]]:
    """List (topic, partition) of each replica that is being moved out of the directory."""
    online = [each for each in directories if each.error is None]
    moving = {(each.topic, each.partition) for disk in online for each in disk.replicas if each.is_future}
    held = {
        (each.topic, each.partition)
        for disk in online
        if disk.path == path
        for each in disk.replicas
        if not each.is_future
    }
    return sorted(moving & held)


def _stay(client: Client, broker: int, path: str) -> None:
    """Cancel the moves out of a directory, by requesting for each replica a move to its present directory.
    Raises `CliError`.
    """
    from odradek.client.admin.moves.disk_plans import DiskMove

    deadline = time.monotonic() + RELEASE_SECONDS
    calm_looks = 0
    while calm_looks < CALM_LOOKS:
        directories = _directories(client, broker)
        leaving = _leaving(directories, path)
        # While the broker counts a directory as cordoned, it refuses moves to this directory.
        is_cordoned = any(each.path == path and each.is_cordoned for each in directories)
        calm_looks = 0 if is_cordoned or leaving else calm_looks + 1
        if leaving and not is_cordoned:
            _ask(client, broker, [DiskMove(*key, "", path, 0) for key in leaving])
        if time.monotonic() > deadline:
            raise CliError(
                f"{path} of broker {broker} accepts replicas again, but "
                f"{counted(len(leaving), 'move')} go on: repeat the command"
            )
        time.sleep(LOOK_SECONDS / 4)


def _balance(args: argparse.Namespace) -> int:
    from odradek.client.admin.moves.disk_plans import disks_of, plan_disk_balance

    documents = []
    with connected(args) as client:
        cluster = client.admin.describe_cluster()
        brokers = args.broker or [
            each.node_id for each in cluster.brokers if each.node_id not in cluster.fenced
        ]
        if args.over_hosts:
            disks = {}
            for broker in dict.fromkeys(brokers):
                directories = _directories(client, broker)
                disks[broker] = disks_of(
                    directories, cordoned_paths(broker_configs(client, broker), directories)
                )
            return balance_over_hosts(args, client, disks)
        for broker in dict.fromkeys(brokers):
            directories = _directories(client, broker)
            closed = cordoned_paths(broker_configs(client, broker), directories)
            moves = plan_disk_balance(disks_of(directories, closed))
            documents.append({"broker": broker, "moves": [_document(each) for each in moves]})
            if not args.json:
                _print_plan(args, broker, moves)
            # Wait for moves from earlier commands, too.
            if not args.dry_run and (moves or _left(client, broker, None)):
                _carry_out(client, args, broker, None, first=moves)
    if args.json:
        print_json({"brokers": documents})
    return 0


# -- carrying it out ---------------------------------------------------------------------------------------------------


def _carry_out(
    client: Client,
    args: argparse.Namespace,
    broker: int,
    plan: Any,
    *,
    first: Sequence[DiskMove] = (),
    emptied: str | None = None,
) -> None:
    """Request the moves and wait until they have ended. Each check calls `plan` for a new plan, because a
    broker may have restarted, or a new replica may have been created. Remove the throttle at the end.
    """
    throttle = CopyThrottle(client, broker, args.throttle)
    throttle.begin()
    try:
        moves, cordon = list(first), _Cordon(broker, emptied)
        while True:
            directories = _directories(client, broker)
            cordon.check(directories)
            throttle.hold()
            if plan is not None:
                moves = _plan_again(broker, plan, directories, emptied)
            if moves:
                _ask(client, broker, moves[:MOVES_AT_ONCE], is_planned_again=plan is not None)
                moves = moves[MOVES_AT_ONCE:] if plan is None else moves
            left = _left(client, broker, emptied)
            if not left and not moves:
                return
            if args.deadline is not None and time.monotonic() >= args.deadline:
                count = counted(left or len(moves), "replica")
                raise CliError(
                    f"--timeout has passed: {count} of broker {broker} not moved yet. Moves that have begun go on: "
                    "repeat the command for the others"
                )
            time.sleep(LOOK_SECONDS)
    finally:
        throttle.end()


class _Cordon:
    """The cordon of a directory that is being emptied. `odradek disk retire --cancel` removes it."""

    def __init__(self, broker: int, path: str | None) -> None:
        """`path` is the directory that is being emptied, or None if there is none."""
        self._broker = broker
        self._path = path
        self._is_seen = False
        self._deadline = time.monotonic() + RELEASE_SECONDS

    def check(self, directories: Sequence[LogDirDescription]) -> None:
        """Raise `CliError` if the directory is no longer cordoned. Until a deadline, a missing cordon is no error if it
        was never seen, because a broker may report a new cordon with a delay.
        """
        if self._path is None:
            return
        if any(each.path == self._path and each.is_cordoned for each in directories):
            self._is_seen = True
        elif self._is_seen or time.monotonic() > self._deadline:
            raise CliError(
                f"{self._path} of broker {self._broker} accepts replicas again, because its retirement "
                "was cancelled; replicas that have left it stay where they are"
            )


def _plan_again(
    broker: int, plan: Any, directories: Sequence[LogDirDescription], emptied: str | None
) -> list[DiskMove]:
    """Make a new plan of moves, because another command may have cordoned a directory since the last plan."""
    from odradek.client.admin.moves.disk_plans import disks_of
    from odradek.client.admin.moves.placement import CannotPlan

    closed = [each.path for each in directories if each.is_cordoned or each.path == emptied]
    try:
        found: list[DiskMove] = plan(disks_of(directories, closed))
    except CannotPlan as error:
        raise CliError(f"broker {broker}: {error}") from error
    return found


def _ask(client: Client, broker: int, moves: Sequence[DiskMove], *, is_planned_again: bool = False) -> None:
    wanted = {(move.topic, move.partition, broker): move.target for move in moves}
    from odradek.wire.errors import ErrorCode, KafkaError

    passed_over = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REPLICA_NOT_AVAILABLE]
    if is_planned_again:
        # The target was cordoned after the plan was made, so the next plan chooses another target.
        passed_over.append(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    for error in client.admin.alter_replica_log_dirs(wanted).values():
        # A replica need not move any more if it was deleted, or was moved to another broker meanwhile.
        if error is not None and not (isinstance(error, KafkaError) and error.code in passed_over):
            raise error


def _left(client: Client, broker: int, emptied: str | None) -> int:
    """Count the replicas that still move, or are in the directory to be emptied. While the directory is not cordoned,
    the count is one higher, so that an empty directory does not end the command too early.
    """
    online = [each for each in _directories(client, broker) if each.error is None]
    moving = sum(replica.is_future or each.path == emptied for each in online for replica in each.replicas)
    return moving + sum(each.path == emptied and not each.is_cordoned for each in online)


def _print_plan(args: argparse.Namespace, broker: int, moves: Sequence[DiskMove]) -> None:
    if args.json:
        print_json({"broker": broker, "moves": [_document(each) for each in moves]})
        return
    if not moves:
        say(f"broker {broker}: there is nothing to move")
        return
    size, rate = sum(move.size for move in moves), args.throttle or _ASSUMED_RATE
    span = span_text(max(1, round(size / rate)) * 1000)
    say(
        f"broker {broker}: {counted(len(moves), 'replica')}, {bytes_text(size)}, about {span} at {bytes_text(rate)}/s"
    )
    rows = [
        (f"{move.topic}-{move.partition}", bytes_text(move.size), move.source, move.target) for move in moves
    ]
    if rows:
        print_table(("REPLICA", "BYTES", "FROM", "TO"), rows[:_LINES_MAX])
    if len(rows) > _LINES_MAX:
        say(f"and {counted(len(rows) - _LINES_MAX, 'more replica')}")


def _document(move: DiskMove) -> dict[str, Any]:
    return {
        "topic": move.topic,
        "partition": move.partition,
        "from": move.source,
        "to": move.target,
        "bytes": move.size,
    }
