"""`odradek partition elect`: elect preferred leaders, or on request replicas that lack records, for partitions
that have no leader.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.cli.connecting import LOOK_SECONDS_MAX, call_failure, changing
from odradek.cli.failure import CliError
from odradek.cli.health.leaderless import Leaderless, find_leaderless, print_leaderless
from odradek.cli.output import RED, YELLOW, counted, paint, print_json, print_table, say

if TYPE_CHECKING:
    from odradek.client.admin import ClusterSurvey
    from odradek.client.core.known_cluster import Partition
    from odradek.client.shells.blocking import Client
    from odradek.wire.topic_partition import TopicPartition

__all__ = ["elect_preferred", "elect_uncleanly"]

_POLL_SECONDS = 0.2


class _Choice(NamedTuple):
    """The broker that should lead a partition (`next`), or the reason why its leader cannot change (`obstacle`)."""

    key: TopicPartition
    before: int
    preferred: int | None
    next: int | None
    obstacle: str | None


def elect_preferred(
    args: argparse.Namespace, client: Client, survey: ClusterSurvey, wanted: dict[TopicPartition, Partition]
) -> int:
    """Elect the preferred (first) replica of each partition, if it is in sync and its broker is alive."""
    choices = [
        _Choice(key, each.leader, each.replicas[0], each.replicas[0], _obstacle(survey, each))
        for key, each in wanted.items()
        if each.replicas and each.leader != each.replicas[0]
    ]
    return _carry_out(args, client, choices, "every partition is led by its preferred replica")


def _obstacle(survey: ClusterSurvey, each: Partition) -> str | None:
    """Return the reason why the preferred replica cannot lead now; None if it can."""
    node = each.replicas[0]
    if node in survey.cluster.fenced or node not in {broker.node_id for broker in survey.cluster.brokers}:
        return f"broker {node} is down"
    if node in each.offline_replicas:
        return f"the directory of broker {node} is offline"
    # Without a leader, replicas outside the ISR may be eligible, and only the controller knows which ones.
    if each.leader >= 0 and node not in each.isr:
        return f"{node} is not in sync yet"
    return None


def elect_uncleanly(
    args: argparse.Namespace, client: Client, survey: ClusterSurvey, wanted: dict[TopicPartition, Partition]
) -> int:
    """Elect a leader for each partition without one: the replica of --leader, or by default the one with the
    most records.
    """
    found = find_leaderless(args, client, survey, wanted)
    choices = [_unclean_choice(args, survey, each) for each in found.values()]
    if found and not args.json:
        print_leaderless(list(found.values()))
        say()
    other = [each for each in choices if each.obstacle is None and each.next != wanted[each.key].replicas[0]]
    if not args.execute or not other:
        return _carry_out(args, client, choices, "every partition is led")
    # The controller elects the first replica in the assignment whose broker it considers alive. So put the
    # wanted replica first, and restore the former order after the election.
    with changing():
        _order(client, {each.key: _first(wanted[each.key].replicas, each.next) for each in other})
        try:
            return _carry_out(args, client, choices, "every partition is led")
        finally:
            _order(client, {each.key: wanted[each.key].replicas for each in other})


def _unclean_choice(args: argparse.Namespace, survey: ClusterSurvey, each: Leaderless) -> _Choice:
    obstacle, node = None, args.leader
    if node is not None and node not in [replica.node for replica in each.replicas]:
        raise CliError(f"broker {node} has no replica of {each.name}")
    if node is None and each.best is not None:
        node = each.best.node
    state = next((replica.state for replica in each.replicas if replica.node == node), None)
    if each.key in survey.reassignments:
        obstacle = "the partition is moving: run `odradek partition move --cancel` first"
    elif state is None:
        obstacle = "no replica of the partition is online"
    elif state != "online":
        obstacle = f"broker {node} is {state}"
    return _Choice(each.key, -1, each.replicas[0].node if each.replicas else None, node, obstacle)


def _first(replicas: Sequence[int], node: int | None) -> tuple[int, ...]:
    assert node is not None, "the preferred node of a partition must be known"
    return (node, *(each for each in replicas if each != node))


def _order(client: Client, orders: dict[TopicPartition, Sequence[int]]) -> None:
    """Change the order of the replicas in the partitions' assignments; no data moves."""
    for error in client.admin.alter_partition_reassignments(orders).values():
        if error is not None:
            raise error


def _carry_out(args: argparse.Namespace, client: Client, choices: Sequence[_Choice], nothing: str) -> int:
    able = [each for each in choices if each.obstacle is None]
    errors: dict[TopicPartition, Any] = {}
    leaders: dict[TopicPartition, int] = {}
    if args.execute and able:
        errors = _elected(args, client, able)
        leaders = _leaders(args, client, [each for each in able if each.key not in errors])
    if args.json:
        partitions = [_document(each, leaders, errors) for each in choices]
        print_json({"executed": bool(args.execute), "partitions": partitions})
    elif not choices:
        say(nothing)
    elif args.execute:
        rows = [_result(each, leaders, errors) for each in choices]
        print_table(("TOPIC", "PARTITION", "BEFORE", "LEADER", "RESULT"), rows)
    else:
        rows = [(*each.key, _node(each.before), _next(each)) for each in choices]
        print_table(("TOPIC", "PARTITION", "LEADER", "NEXT"), rows)
        say(paint(YELLOW, "nothing was changed: add --execute to do it"))
        if args.unclean:
            say(paint(RED, "records that only the lost replicas had will be lost for good"))
    if errors:
        raise call_failure(next(iter(errors.values())), changes=True)
    left = [each for each in choices if each.obstacle is not None]
    if args.execute and left:
        raise CliError(
            f"{counted(len(left), 'partition')} cannot have an election, such as {left[0].key}: "
            f"{left[0].obstacle}. Remove the obstacle, then try again"
        )
    return 0


def _elected(
    args: argparse.Namespace, client: Client, choices: Sequence[_Choice]
) -> dict[TopicPartition, Any]:
    """Elect leaders; return the errors by partition. Partitions that already had the right leader have no
    error.
    """
    from odradek.client.admin import ElectionType
    from odradek.wire.errors import ErrorCode

    kind = ElectionType.UNCLEAN if args.unclean else ElectionType.PREFERRED
    with changing():
        outcomes = client.admin.elect_leaders([each.key for each in choices], kind)
    return {
        key: error
        for key, error in outcomes.items()
        if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED
    }


def _leaders(
    args: argparse.Namespace, client: Client, choices: Sequence[_Choice]
) -> dict[TopicPartition, int]:
    """Return the leader of each partition. Before that, wait briefly until the elected brokers lead, because
    the broker that answers may learn of an election later than the controller.
    """
    deadline = time.monotonic() + min(args.timeout, LOOK_SECONDS_MAX)
    names = sorted({each.key.topic for each in choices})
    while choices:
        topics = {topic.name: topic.partitions for topic in client.admin.describe_topics(names)}
        leaders = {each.key: topics[each.key.topic][each.key.partition].leader for each in choices}
        if time.monotonic() >= deadline or all(leaders[each.key] == each.next for each in choices):
            return leaders
        time.sleep(_POLL_SECONDS)
    return {}


def _node(node: int | None) -> int | str:
    return node if node is not None and node >= 0 else "none"


def _next(each: _Choice) -> int | str:
    if each.obstacle is None:
        return _node(each.next)
    return f"{'stays' if each.before >= 0 else 'none'}: {each.obstacle}"


def _result(
    each: _Choice, leaders: dict[TopicPartition, int], errors: dict[TopicPartition, Any]
) -> tuple[Any, ...]:
    leader = leaders.get(each.key, each.before)
    if each.obstacle is not None:
        result = each.obstacle
    elif each.key in errors:
        result = errors[each.key].code.name
    else:
        result = "elected" if leader == each.next else "asked for"
    return *each.key, _node(each.before), _node(leader), result


def _document(
    each: _Choice, leaders: dict[TopicPartition, int], errors: dict[TopicPartition, Any]
) -> dict[str, Any]:
    leader = leaders.get(each.key, each.before)
    return {
        "topic": each.key.topic,
        "partition": each.key.partition,
        "leader_before": each.before if each.before >= 0 else None,
        "leader": leader if leader >= 0 else None,
        "preferred": each.preferred,
        "next": each.next if each.obstacle is None else None,
        "obstacle": each.obstacle,
        "error": errors[each.key].code.name if each.key in errors else None,
    }
