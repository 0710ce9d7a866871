"""`odradek quorum inspect|recover|begin-anew` and `odradek metadata rebuild`: restore a quorum from the
remaining copies of the metadata log.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from odradek.cli.failure import CliError
from odradek.cli.output import print_json, print_values, say
from odradek.cli.parsing import Groups, add_command, file_path, id_number
from odradek.cli.recovering.given_files import topic_configs_in
from odradek.cli.recovering.stopped_nodes import (
    answers_at,
    backup_in,
    controller_addresses,
    facts_of,
    read_nodes,
)

if TYPE_CHECKING:
    from odradek.metadata_quorum.recovery.choice import Choice
    from odradek.metadata_quorum.recovery.found import FoundNode
    from odradek.metadata_quorum.recovery.plan import RecoveryPlan
    from odradek.operations.recovery.node_reading import NodeFacts
    from odradek.wire.structure import Message

__all__ = ["register_rebuild", "register_recovery"]

_REVIEWED_MAX = 50
_NAMED_AS_LOST = re.compile(r"name it with (--lost \S+) if its metadata are lost\Z")

Json: TypeAlias = "str | int | bool | Sequence[Json] | Mapping[str, Json] | None"


def register_recovery(commands: Groups) -> None:
    """Add the recovery commands to the group `quorum`."""
    inspect = add_command(
        commands,
        "inspect",
        _inspect,
        "write a report about the stopped nodes of this host, as input for `quorum recover`",
    )
    _add_configs(inspect, "+")
    inspect.add_argument(
        "--to", metavar="FILE", type=file_path, required=True, help="the file for the report"
    )

    _register_recover(commands)
    anew = add_command(
        commands,
        "begin-anew",
        _begin_anew,
        "set a stopped node's metadata log aside, so that the node fetches the quorum's; without --execute only show",
    )
    _add_configs(anew, None)
    anew.add_argument("--execute", action="store_true", help="do it")
    anew.add_argument(
        "--has-no-vote",
        action="store_true",
        help="confirm that this node's directory has no vote in the quorum now, even if its own log says so",
    )


def register_rebuild(commands: Groups) -> None:
    """Add the command `rebuild` to the group `metadata`."""
    again = add_command(
        commands,
        "rebuild",
        _rebuild,
        "make a new metadata log from the disks if no copy is left; without --execute only show the plan",
    )
    _add_configs(again, "*")
    _add_shared(again)
    again.add_argument(
        "--access",
        metavar="FILE",
        type=file_path,
        help=(
            "users, rights and quotas of the new log, in JSON: an object with users, acls and quotas; - reads "
            "standard input"
        ),
    )


def _register_recover(commands: Groups) -> None:
    recover = add_command(
        commands,
        "recover",
        _recover,
        "begin a new metadata log from the best copy that is left; without --execute only show the plan",
    )
    _add_configs(recover, "*")
    _add_shared(recover)
    recover.add_argument(
        "--lost",
        metavar="ID:DIR",
        type=_voter,
        action="append",
        default=[],
        help=(
            "a voter whose metadata log is lost, with the id of its directory (repeat for more); without this "
            "option, the plan lists the missing voters"
        ),
    )
    recover.add_argument(
        "--backup",
        metavar="PATH",
        type=file_path,
        help="a backup of the metadata log, as a further copy: the archive, or its unpacked directory",
    )
    recover.add_argument(
        "--even-if-older", action="store_true", help="use the backup even if a node has a newer copy"
    )
    recover.add_argument(
        "--from", dest="source", metavar="FILE", type=file_path, help="execute the plan in this file"
    )


def _add_shared(parser: argparse.ArgumentParser) -> None:
    """Add the options that `recover` and `rebuild` share."""
    parser.add_argument(
        "--report",
        metavar="FILE",
        type=file_path,
        action="append",
        default=[],
        help="a report that `quorum inspect` has written on another host (repeat for more)",
    )
    parser.add_argument(
        "--absent",
        metavar="ID",
        type=id_number,
        action="append",
        default=[],
        help="a node that cannot be read now, and may come back: its partitions wait for it (repeat for more)",
    )
    parser.add_argument(
        "--gone",
        metavar="ID",
        type=id_number,
        action="append",
        default=[],
        help="a node that is lost for ever (repeat for more)",
    )
    parser.add_argument(
        "--topic",
        metavar="NAME=ID",
        type=_topic,
        action="append",
        default=[],
        help="the id of the right topic, if directories have several topics of this name (repeat for more)",
    )
    parser.add_argument(
        "--topics",
        metavar="FILE",
        type=file_path,
        help="configurations for topics that no copy knows, in JSON: a list of objects with name and configs",
    )
    parser.add_argument(
        "--plan",
        metavar="FILE",
        type=file_path,
        help="write the plan to this file, for the other hosts (default with --execute: a file beside the first CONFIG)",
    )
    parser.add_argument("--execute", action="store_true", help="execute the plan on the nodes of this host")


def _add_configs(parser: argparse.ArgumentParser, count: str | None) -> None:
    parser.add_argument(
        "config", metavar="CONFIG", type=file_path, nargs=count, help="the properties file of a stopped node"
    )


def _voter(text: str) -> tuple[int, bytes]:
    from odradek.wire.structure import ZERO_UUID
    from odradek.wire.uuid_text import uuid_from_text

    node, colon, directory = text.partition(":")
    try:
        return id_number(node), uuid_from_text(directory) if colon else ZERO_UUID
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not ID:DIR, where DIR has 22 characters of base64"
        ) from None


def _topic(text: str) -> tuple[str, bytes]:
    from odradek.wire.uuid_text import uuid_from_text

    name, equals, topic_id = text.partition("=")
    try:
        if not name or not equals:
            raise ValueError
        return name, uuid_from_text(topic_id)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=ID, where ID has 22 characters of base64"
        ) from None


def _inspect(args: argparse.Namespace) -> int:
    from odradek.metadata_quorum.recovery.recovery_files import encode_report

    nodes = read_nodes([facts_of(each) for each in args.config])
    _write_for_owner(args.to, encode_report(nodes))
    if args.json:
        print_json({"report": args.to, "nodes": [each.node_id for each in nodes]})
    else:
        for node in nodes:
            say(f"node {node.node_id}: {_about_node(node)}")
        say(f"the report is in {args.to}")
    return 0


def _about_node(node: FoundNode) -> str:
    copy = node.copy_problem or "has a copy of the metadata log"
    dead = "".join(f", {each.path} cannot be read: {each.problem}" for each in node.dead_directories)
    return f"{copy}, {len(node.replicas)} replicas{dead}"


def _write_for_owner(path: str, data: bytes) -> None:
    """Write a file that only its owner can read, either completely or not at all. Raises `CliError`."""
    unfinished = f"{path}.tmp"
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, path)
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror or error}") from error


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror or error}") from error


def _rebuild(args: argparse.Namespace) -> int:
    args.backup, args.even_if_older, args.lost, args.source = None, False, [], None
    return _begin_log(args, is_rebuilt=True)


def _recover(args: argparse.Namespace) -> int:
    return _begin_log(args, is_rebuilt=False)


def _begin_log(args: argparse.Namespace, *, is_rebuilt: bool) -> int:
    """Plan a new metadata log, from an old copy or from the disks alone (`is_rebuilt`). With --execute, write
    the new log on the nodes of this host.
    """
    facts = [facts_of(each) for each in args.config]
    if args.source is not None:
        plan = _plan_in(args.source)
        document: dict[str, Json] = _plan_document(plan)
        if not args.json:
            _show_plan(plan)
    else:
        nodes, choice = _look(args, facts, is_rebuilt=is_rebuilt)
        document = _choice_document(choice, nodes)
        if not args.json:
            _show_choice(choice, nodes)
        if choice.refusals or choice.chosen is None:
            return _refuse(args, choice, document)
        plan = _make_plan(choice, nodes, args.absent)
        document |= _plan_document(plan)
        if not args.json:
            _show_plan(plan)
    done: list[int] = []
    if args.execute and args.plan is None and args.source is None and facts:
        # If the command is interrupted, a later command can continue with the saved plan.
        args.plan = f"{args.config[0]}.recovery-{plan.end.epoch}.json"
    if args.plan is not None:
        from odradek.metadata_quorum.recovery.recovery_files import encode_plan

        _write_for_owner(args.plan, encode_plan(plan))
    if args.execute:
        done = _execute(plan, facts, args.source or args.plan)
        document["done"] = done
    if args.json:
        print_json(document)
    else:
        _conclude(args, plan, done)
    return 0


def _plan_in(path: str) -> RecoveryPlan:
    from odradek.metadata_quorum.ports import MetadataLogCorrupt
    from odradek.metadata_quorum.recovery.recovery_files import MalformedFile, decode_plan

    try:
        return decode_plan(_read(path))
    except (MalformedFile, MetadataLogCorrupt) as error:
        raise CliError(f"{path}: {error}") from error


def _look(
    args: argparse.Namespace, facts: Sequence[NodeFacts], *, is_rebuilt: bool
) -> tuple[list[FoundNode], Choice]:
    """Read the disks of the nodes and the reports of other hosts. Return the nodes, and the choice of the
    copy to continue from. Raises `CliError`.
    """
    from odradek.metadata_quorum.raft.voters import ReplicaKey
    from odradek.metadata_quorum.recovery.choice import Named, choose, rebuild
    from odradek.metadata_quorum.recovery.recovery_files import MalformedFile, decode_report

    nodes = read_nodes(facts)
    for path in args.report:
        try:
            nodes += decode_report(_read(path))
        except MalformedFile as error:
            raise CliError(f"{path}: {error}") from error
    if not nodes:
        raise CliError(
            "name the properties files of the stopped nodes, or --report FILE for those of other hosts"
        )
    named = Named(
        lost=tuple(ReplicaKey(*each) for each in args.lost),
        absent=tuple(args.absent),
        gone=tuple(args.gone),
        topics=dict(args.topic),
        backup_may_be_older=args.even_if_older,
        configs={} if args.topics is None else topic_configs_in(args.topics),
    )
    if is_rebuilt:
        choice = rebuild(nodes, named, _access(args))
    else:
        backup = None if args.backup is None else (args.backup, backup_in(args.backup))
        choice = choose(nodes, named, backup)
    return nodes, _with_living(choice, nodes)


def _access(args: argparse.Namespace) -> Sequence[Message]:
    """Return the records of users, rights and quotas that the operator gives. Raises `CliError`."""
    if args.access is None:
        return ()
    from odradek.cli.recovering.access_file import access_records
    from odradek.env.real import RealEnv

    return access_records(args.access, RealEnv().new_uuid)


def _with_living(choice: Choice, nodes: Sequence[FoundNode]) -> Choice:
    """Refuse the recovery if a controller may still run: add one refusal to the choice for each known
    controller address at which a process listens.
    """
    import attrs

    found = answers_at(controller_addresses(choice, nodes))
    refusals = [
        f"a process listens at {host}:{port}, a controller's address according to {source}: stop all nodes first"
        for (host, port), source in found.items()
    ]
    return attrs.evolve(choice, refusals=(*choice.refusals, *refusals))


def _make_plan(choice: Choice, nodes: Sequence[FoundNode], absent: Sequence[int]) -> RecoveryPlan:
    from odradek.env.real import RealEnv
    from odradek.metadata_quorum.recovery.plan import make_plan

    assert choice.chosen is not None
    return make_plan(
        choice.chosen,
        choice.copies,
        nodes,
        absent=absent,
        topics=choice.topics,
        configs=choice.configs,
        new_uuid=RealEnv().new_uuid,
        timestamp_ms=time.time_ns() // 1_000_000,
    )


def _execute(plan: RecoveryPlan, facts: Sequence[NodeFacts], path: str) -> list[int]:
    """Execute the plan on the nodes of this host. Return the ids of the nodes that this call has changed.
    `path` is the plan's file. Raises `CliError`.
    """
    from odradek.env.ports import DiskError
    from odradek.env.real import RealEnv
    from odradek.operations.recovery.applying import apply_plan
    from odradek.operations.recovery.node_reading import NotReadable

    if not facts:
        raise CliError("--execute needs the properties files of the nodes on this host")
    env, done = RealEnv(), []
    for each in facts:
        try:
            if apply_plan(plan, each, env):
                done.append(each.node_id)
        except (NotReadable, DiskError) as error:
            raise CliError(
                f"node {each.node_id}: {error}. When that is corrected, continue with the same plan: `odradek quorum recover --from "
                f"{path} CONFIG ... --execute`"
            ) from error
    return done


def _refuse(args: argparse.Namespace, choice: Choice, document: dict[str, Json]) -> int:
    if args.json:
        print_json(document)
    else:
        say()
        for each in choice.refusals:
            say(f"refused: {each}")
        lost = [found[1] for each in choice.refusals if (found := _NAMED_AS_LOST.search(each))]
        if len(lost) == len(choice.refusals):
            say()
            say(f"if all of these are lost, add to the same command: {' '.join(lost)}")
    count = len(choice.refusals)
    raise CliError(
        f"{count} {'reason speaks' if count == 1 else 'reasons speak'} against a recovery (see above)"
    )


def _choice_document(choice: Choice, nodes: Sequence[FoundNode]) -> dict[str, Json]:
    from odradek.metadata_quorum.recovery.evidence import evidence, review

    return {
        "copies": [
            {"source": each.source, "end_offset": each.end.offset, "epoch": each.end.epoch}
            for each in (() if choice.is_rebuilt else choice.copies)
        ],
        "chosen": None if choice.chosen is None else choice.chosen.source,
        "evidence": evidence(choice, nodes),
        "review": dict(review(choice, nodes)),
        "refusals": list(choice.refusals),
    }


def _show_choice(choice: Choice, nodes: Sequence[FoundNode]) -> None:
    from odradek.metadata_quorum.recovery.evidence import evidence, review

    for each in () if choice.is_rebuilt else choice.copies:
        mark = ", counts" if each is choice.chosen else ""
        say(f"{each.source}: a copy up to offset {each.end.offset} of epoch {each.end.epoch}{mark}")
    if choice.is_rebuilt:
        say("no copy is left: the new log is made from the directories of the nodes")
    for node in nodes:
        if node.copy is None:
            say(f"node {node.node_id}: {node.copy_problem}")
    lines = evidence(choice, nodes)
    if lines:
        say()
        say("evidence of missing metadata:")
        for line in lines:
            say(f"  {line}")
    returning = review(choice, nodes)
    if returning:
        say()
        say(
            "the new log has these, as they were given:"
            if choice.is_rebuilt
            else "the recovery restores these, although they may have been removed after the copy was made. Check each line:"
        )
    for name, found in returning:
        say(f"  {name}: {len(found)}")
        for line in found[:_REVIEWED_MAX]:
            say(f"    {line}")
        if len(found) > _REVIEWED_MAX:
            say(f"    and {len(found) - _REVIEWED_MAX} more: --json has all of them")


def _plan_document(plan: RecoveryPlan) -> dict[str, Json]:
    from odradek.wire.uuid_text import uuid_to_text

    return {
        "plan": {
            "cluster_id": plan.cluster_id,
            "offset": plan.end.offset,
            "epoch": plan.end.epoch,
            "next_producer_id": plan.next_producer_id,
            "voters": None
            if plan.voters is None
            else {str(each.key.node_id): uuid_to_text(each.key.directory_id) for each in plan.voters.voters},
            "nodes": [each.node_id for each in plan.nodes],
        }
    }


def _show_plan(plan: RecoveryPlan) -> None:
    voters = "as configured"
    if plan.voters is not None:
        voters = ", ".join(str(each.key.node_id) for each in plan.voters.voters)
    say()
    print_values(
        [
            ("new log from offset", plan.end.offset),
            ("epoch", plan.end.epoch),
            ("next producer id", plan.next_producer_id),
            ("voters", voters),
            ("nodes", ", ".join(str(each.node_id) for each in plan.nodes)),
        ]
    )
    if plan.voters is not None and len(plan.voters.voters) % 2 == 0:
        count = len(plan.voters.voters)
        say(
            f"an even number of voters: {count} can lose {(count - 1) // 2}, as many as {count - 1} can. After the start, take a "
            f"vote away by `odradek quorum remove {plan.voters.voters[-1].key.node_id}`, or add one"
        )


def _conclude(args: argparse.Namespace, plan: RecoveryPlan, done: Sequence[int]) -> None:
    left = [each.node_id for each in plan.nodes if each.node_id not in done]
    if args.plan is not None and left:
        say(f"the plan is in {args.plan}: `odradek quorum recover --from FILE CONFIG --execute` on each host")
    if not args.execute:
        say("nothing was changed: --execute carries the plan out")
        if args.source is None and args.plan is None:
            say("offset and epoch are partly random, so the next call shows other ones")
        return
    for each in plan.nodes:
        if each.node_id in done:
            kept = ", the old one was set aside" if each.copy_end.offset > 0 else ""
            say(f"node {each.node_id}: the new metadata log is in its place{kept}")
    if left:
        say(f"other nodes of the plan, already done or still to do: {', '.join(map(str, left))}")
    elif args.plan is not None:
        say(f"all nodes of the plan are done: remove {args.plan}, which contains the whole metadata log")
    say(
        "when all nodes are done, start them: each partition waits for all of its replicas, then the longest log leads"
    )


def _begin_anew(args: argparse.Namespace) -> int:
    from odradek.env.ports import DiskError
    from odradek.env.real import RealEnv
    from odradek.operations.recovery.applying import begin_anew
    from odradek.operations.recovery.node_reading import NotReadable

    facts = facts_of(args.config)
    (node,) = read_nodes([facts])
    name = None
    if args.execute:
        try:
            name = begin_anew(facts, RealEnv(), has_no_vote=args.has_no_vote)
        except (NotReadable, DiskError) as error:
            raise CliError(str(error)) from error
    if args.json:
        print_json({"node": node.node_id, "set_aside": name})
    elif name is None:
        say(f"node {node.node_id}: {_about_node(node)}")
        say("nothing was changed: --execute sets its metadata log aside")
    else:
        say(
            f"node {node.node_id}: its metadata log was set aside under the name {name}; at its next start the node fetches the quorum's log"
        )
    return 0
