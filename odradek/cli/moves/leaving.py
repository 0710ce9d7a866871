"""The plan of `odradek broker drain`: how replicas move off brokers (even if these are down), partitions
without a leader, the option --accept-loss.

New replicas copy from each partition's leader, so the broker that leaves may be down. A partition without a
leader stays on its brokers, and the plan lists it. There are two kinds of partitions without a leader. A
waiting partition waits for another broker, which has all its records. A lost partition has no remaining
broker with all its records. The operator gives up lost partitions by topic (`--accept-loss`). A partition
that is given up continues with the records of the best remaining replica. If there is no such replica, it
continues empty on new brokers.

The plan includes moves that are under way already, so the command may be interrupted and repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from odradek.cli.connecting import call_failure, changing
from odradek.cli.failure import CliError
from odradek.cli.health.leaderless import Leaderless, find_leaderless
from odradek.cli.moves.plans import refuse_too_full, topic_partitions
from odradek.cli.output import RED, YELLOW, counted, paint, say

if TYPE_CHECKING:
    from odradek.client.admin import ClusterSurvey
    from odradek.client.admin.moves.placement import Move
    from odradek.client.core.known_cluster import Partition
    from odradek.client.shells.blocking import Client
    from odradek.wire.topic_partition import TopicPartition

StuckDocument: TypeAlias = "dict[str, str | int | bool | list[int] | None]"

__all__ = ["Leaving", "add_loss_option", "moves_under_way", "plan_leaving"]


def add_loss_option(parser: argparse.ArgumentParser) -> None:
    """Add --accept-loss."""
    parser.add_argument(
        "--accept-loss",
        metavar="TOPIC[:N,N-N]",
        action="append",
        default=[],
        type=topic_partitions,
        help="give up records that only these brokers have, of this topic or these partitions of it (repeat for more)",
    )


class Stuck(NamedTuple):
    """A partition without a leader that has a replica on a broker that leaves."""

    leaderless: Leaderless
    waits_for: tuple[int, ...]
    """The brokers that have all records of the partition, or else its last leader; brokers that the plan
    empties are left out.
    """
    source: int | None
    """The remaining broker whose replica lacks the fewest records; None if no such replica is online."""

    @property
    def is_lost(self) -> bool:
        """True if no remaining broker can have all records."""
        return not self.waits_for

    def document(self) -> StuckDocument:
        """Make the object of this partition for `--json`."""
        return {
            "topic": self.leaderless.key.topic,
            "partition": self.leaderless.key.partition,
            "lost": self.is_lost,
            "waits_for": list(self.waits_for),
            "source": self.source,
        }


class Leaving(NamedTuple):
    """A plan that moves all replicas off some brokers, and a list of the partitions that it does not move."""

    brokers: tuple[int, ...]
    moves: list[Move]
    """All moves, in order of topics and partitions."""
    under_way: list[Move]
    """The moves in `moves` that have begun already."""
    given_up: list[Stuck]
    """Lost partitions that the operator gives up, so that they continue with the records that remain."""
    kept: list[Stuck]
    """Partitions without a leader that stay on their brokers."""
    narrowed: list[Move]
    """The moves in `moves` after which a partition spans fewer racks."""

    def document(self) -> dict[str, list[StuckDocument] | int]:
        """Make the keys of `--json` that only this kind of plan has."""
        return {
            "given_up": [each.document() for each in self.given_up],
            "kept": [each.document() for each in self.kept],
            "narrowed": len(self.narrowed),
        }

    def print_notes(self) -> None:
        """Print a line for each topic with partitions that are given up or not moved, and a line about racks."""
        for name, found in _by_topic(self.given_up).items():
            say(paint(RED, f"{name}: {counted(len(found), 'partition')} without all records: {_loss(found)}"))
        for line in self.kept_lines():
            say(paint(RED, line))
        if self.narrowed:
            say(
                paint(
                    YELLOW, f"{counted(len(self.narrowed), 'partition')} would span fewer racks than before"
                )
            )

    def kept_lines(self) -> list[str]:
        """Return a line for each topic with partitions that are not moved. It gives the reason and the
        remedy.
        """
        names = ", ".join(map(str, self.brokers))
        lines = []
        for name, found in _by_topic(each for each in self.kept if each.is_lost).items():
            lines.append(
                f"{name}: {counted(len(found), 'partition')} with all records on broker {names} alone, and still assigned to it; "
                f"--accept-loss {name} gives them up: {_loss(found)}"
            )
        for name, found in _by_topic(each for each in self.kept if not each.is_lost).items():
            others = sorted({node for each in found for node in each.waits_for})
            lines.append(
                f"{name}: {counted(len(found), 'partition')} without a leader, waiting for broker "
                f"{', '.join(map(str, others))}: start it, then repeat the command"
            )
        return lines

    def begin_anew(self, client: Client, survey: ClusterSurvey) -> None:
        """Move the lost partitions to their new brokers, and elect for each partition the replica with the most
        records. Raises `CliError`.
        """
        from odradek.client.admin import ElectionType
        from odradek.wire.errors import ErrorCode, KafkaError

        if not self.given_up:
            return
        refuse_too_full([each for each in self.moves if each not in self.under_way], survey)
        keys = [each.leaderless.key for each in self.given_up]
        after = {(move.topic, move.partition): move.after for move in self.moves}
        with changing():
            asked = client.admin.alter_partition_reassignments({key: after[key] for key in keys})
            outcomes = client.admin.elect_leaders(keys, ElectionType.UNCLEAN)
        for error in (*asked.values(), *outcomes.values()):
            is_settled = isinstance(error, KafkaError) and error.code is ErrorCode.ELECTION_NOT_NEEDED
            if error is not None and not is_settled:
                raise call_failure(error, changes=True)


def _by_topic(partitions: Iterable[Stuck]) -> dict[str, list[Stuck]]:
    found: dict[str, list[Stuck]] = {}
    for each in partitions:
        found.setdefault(each.leaderless.key.topic, []).append(each)
    return found


def _loss(partitions: Sequence[Stuck]) -> str:
    empty = sum(each.source is None for each in partitions)
    rest = len(partitions) - empty
    parts = [f"{empty} {'begins' if empty == 1 else 'begin'} empty"] if empty else []
    if rest:
        parts.append(f"{rest} {'goes' if rest == 1 else 'go'} on with the records of another replica")
    return ", ".join(parts)


def plan_leaving(args: argparse.Namespace, client: Client, survey: ClusterSurvey) -> Leaving:
    """Plan the moves of all replicas off `args.brokers`. Raises `CliError` if some replica fits on no other
    broker.
    """
    from odradek.client.admin.moves.balance import drain
    from odradek.client.admin.moves.placement import CannotPlan

    leaving = tuple(args.brokers)
    _refuse_arrivals(survey, leaving)
    stuck = _stuck(args, client, survey, leaving)
    accepted = _accepted(args, survey)
    given_up = [each for each in stuck if each.is_lost and each.leaderless.key in accepted]
    kept = [each for each in stuck if each not in given_up]
    waiting = {each.leaderless.key for each in kept}
    under_way = [
        move
        for move in moves_under_way(survey, leaving=leaving)
        if (move.topic, move.partition) not in waiting
    ]
    # A move under way ends by itself, unless it leads to a broker that leaves.
    ending = {key for key, move in survey.reassignments.items() if not set(move.target) & set(leaving)}
    placements = survey.placements_to_be
    movable = {each.key for each in placements} - waiting - ending
    try:
        planned = drain(survey.sites, placements, leaving, only=movable)
    except CannotPlan as error:
        raise CliError(f"{error}: add a broker first, or `odradek partition move --replicas`") from error
    moves = sorted(
        _led_by_the_best([*under_way, *planned], {each.leaderless.key: each.source for each in given_up}),
        key=lambda move: (move.topic, move.partition),
    )
    return Leaving(leaving, moves, under_way, given_up, kept, _narrowed(survey, moves))


def _refuse_arrivals(survey: ClusterSurvey, leaving: Collection[int]) -> None:
    """Raise `CliError` if replicas are moving to a live broker that should leave. (A dead broker gets no new
    replicas.)
    """
    alive = {site.node_id for site in survey.sites} & set(leaving)
    for key, move in survey.reassignments.items():
        if alive & set(move.target):
            raise CliError(
                f"{key[0]}-{key[1]} is moving already: wait (`odradek partition list --moving`), "
                "or `odradek partition move --cancel`"
            )


def moves_under_way(
    survey: ClusterSurvey, *, leaving: Collection[int] = (), coming: Collection[int] = ()
) -> list[Move]:
    """List the moves that have begun already: off brokers that leave (`leaving`), or to brokers that join
    (`coming`).
    """
    from odradek.client.admin.moves.placement import Move

    return [
        Move(
            *key,
            tuple(node for node in move.replicas if node not in move.adding),
            move.target,
            survey.sizes.get(key, 0),
        )
        for key, move in sorted(survey.reassignments.items())
        if (set(move.removing) & set(leaving) and not set(move.target) & set(leaving))
        or set(move.adding) & set(coming)
    ]


def _stuck(
    args: argparse.Namespace, client: Client, survey: ClusterSurvey, leaving: Collection[int]
) -> list[Stuck]:
    found = find_leaderless(args, client, survey, _held(survey, leaving))
    return [
        Stuck(
            each,
            tuple(node for node in (each.complete or each.last or ()) if node not in leaving),
            _source(each, leaving),
        )
        for each in found.values()
    ]


def _source(partition: Leaderless, leaving: Collection[int]) -> int | None:
    staying = [each for each in partition.candidates if each.node not in leaving and each.log is not None]
    best = max(staying, key=lambda each: each.rank, default=None)
    return None if best is None else best.node


def _held(survey: ClusterSurvey, leaving: Collection[int]) -> dict[TopicPartition, Partition]:
    from odradek.wire.topic_partition import TopicPartition

    return {
        TopicPartition(topic.name, index): each
        for topic in survey.topics
        for index, each in sorted(topic.partitions.items())
        if set(each.replicas) & set(leaving)
    }


def _accepted(args: argparse.Namespace, survey: ClusterSurvey) -> set[TopicPartition]:
    """List the partitions that `--accept-loss` names. Raises `CliError` for a topic that does not exist."""
    from odradek.wire.topic_partition import TopicPartition

    topics = {topic.name: topic.partitions for topic in survey.topics}
    found = set()
    for name, indexes in args.accept_loss:
        if name not in topics:
            raise CliError(f"--accept-loss: topic {name} does not exist (UNKNOWN_TOPIC_OR_PARTITION)")
        found |= {TopicPartition(name, index) for index in (indexes or topics[name])}
    return found


def _led_by_the_best(moves: Sequence[Move], sources: dict[TopicPartition, int | None]) -> list[Move]:
    """Put the replica with the most records first in each move of a lost partition, because the first replica
    will lead.
    """
    from attrs import evolve

    from odradek.wire.topic_partition import TopicPartition

    ordered = []
    for move in moves:
        source = sources.get(TopicPartition(move.topic, move.partition))
        if source is not None and source in move.after:
            rest = tuple(node for node in move.after if node != source)
            ordered.append(evolve(move, after=(source, *rest)))
        else:
            ordered.append(move)
    return ordered


def _narrowed(survey: ClusterSurvey, moves: Sequence[Move]) -> list[Move]:
    racks = {broker.node_id: broker.rack for broker in survey.cluster.brokers}
    if not all(racks.values()):
        return []

    def span(nodes: Iterable[int]) -> int:
        return len({racks.get(node) for node in nodes})

    return [move for move in moves if span(move.after) < span(move.before)]
