"""The one judgement of a cluster's health: the problems in a picture of it, each with what to do.

`odradek cluster health` prints the problems, and `odradek cluster status` prints those that its figures do not show.
Both end with `UNHEALTHY` if there is a problem. A warning alone leaves the status 0: it announces trouble, but clients
are served and no copy is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from odradek.cli.clean_status import uncleanable_texts
from odradek.cli.health.picture import Picture, is_silent_voter
from odradek.cli.health.troubles import health_texts, trouble_text
from odradek.cli.output import counted, span_text

if TYPE_CHECKING:
    from odradek.client.admin import QuorumDescription

__all__ = ["UNHEALTHY", "Problem", "exit_status", "problems_of"]

UNHEALTHY = 3
"""The exit status of a command that was answered, and found a problem."""
_LAG_MS = 30_000
"""A voter that has not caught up for this many milliseconds gets a warning."""
_NAMES_MAX = 3
_TRANSACTIONS_MAX = 5


class Problem(NamedTuple):
    """One thing that is wrong, and what to do. `kind` is a stable name for scripts. `broker`, `path` and
    `partitions` say where, if the problem has such a place.
    """

    kind: str
    text: str
    remedy: str
    is_warning: bool = False
    broker: int | None = None
    path: str | None = None
    partitions: Sequence[str] = ()

    @property
    def line(self) -> str:
        """The problem and the remedy in one line."""
        return f"{self.text}: {self.remedy}" if self.remedy else self.text

    def document(self) -> dict[str, object]:
        """Make the problem's object for `--json`."""
        return {
            "kind": self.kind,
            "warning": self.is_warning,
            "text": self.text,
            "remedy": self.remedy,
            "broker": self.broker,
            "path": self.path,
            "partitions": list(self.partitions),
        }


def problems_of(picture: Picture) -> list[Problem]:
    """Judge a picture. Return the problems, the gravest first; an empty list means that the cluster is healthy."""
    found = [
        *_of_quorum(picture.quorum),
        *_of_brokers(picture),
        *_of_partitions(picture),
        *_of_disks(picture),
        *_of_transactions(picture),
        *_of_unseen(picture),
    ]
    return sorted(found, key=lambda each: each.is_warning)


def exit_status(problems: Sequence[Problem]) -> int:
    """Return 0 if no problem is graver than a warning, else `UNHEALTHY`."""
    return 0 if all(each.is_warning for each in problems) else UNHEALTHY


def _of_quorum(quorum: QuorumDescription | None) -> Iterator[Problem]:
    if quorum is None:
        yield Problem(
            "no-quorum",
            "the quorum has no leader that answers: too few voters run, or the leader is slow",
            "look which voters run, and start more, or run `odradek quorum recover` if most of their disks are lost",
        )
        return
    if quorum.leader is None:
        yield Problem(
            "no-quorum",
            "the quorum has no leader, because too few voters run",
            "start more voters, or run `odradek quorum recover` if most of their disks are lost",
        )
        return
    leader = quorum.leader
    silent = [voter for voter in quorum.voters if is_silent_voter(quorum, voter)]
    spare = len(quorum.voters) - len(silent) - (len(quorum.voters) // 2 + 1)
    for voter in silent:
        ago = (
            span_text(max(0, leader.last_fetch_ms - voter.last_fetch_ms)) if voter.last_fetch_ms >= 0 else ""
        )
        rest = "; the quorum survives no further loss" if spare <= 0 else ""
        yield Problem(
            "silent-voter",
            f"controller {voter.node_id} has not fetched the metadata log {f'for {ago}' if ago else 'yet'}{rest}",
            "start it, or read its log",
            broker=voter.node_id,
        )
    for voter in quorum.voters:
        behind = leader.last_fetch_ms - voter.last_caught_up_ms
        if voter in silent or voter.node_id == quorum.leader_id or voter.last_caught_up_ms < 0:
            continue
        if behind > _LAG_MS:
            records = counted(quorum.lag(voter) or 0, "record")
            yield Problem(
                "lagging-voter",
                f"controller {voter.node_id} is {records} behind the metadata log, and has not caught up for "
                f"{span_text(behind)}",
                "look at its processor, its disk and its network",
                is_warning=True,
                broker=voter.node_id,
            )


def _of_brokers(picture: Picture) -> Iterator[Problem]:
    cluster, replicas = picture.cluster, picture.partitions.replicas
    for broker in cluster.brokers:
        address = f"{broker.host}:{broker.port}"
        if broker.node_id in cluster.fenced:
            held = counted(replicas.get(broker.node_id, 0), "replica")
            yield Problem(
                "broker-down",
                f"broker {broker.node_id} ({address}) is down, with {held}",
                f"start it; if it is gone for good, `odradek broker drain {broker.node_id}` moves its replicas",
                broker=broker.node_id,
            )
        elif broker.node_id in picture.silent:
            yield Problem(
                "broker-silent",
                f"broker {broker.node_id} ({address}) does not answer here, and the controllers have not missed it yet "
                f"({picture.silent[broker.node_id]})",
                "look whether it runs, and whether this host reaches its address (`odradek cluster doctor`)",
                broker=broker.node_id,
            )


def _of_partitions(picture: Picture) -> Iterator[Problem]:
    found = picture.partitions
    behind = [name for name in found.behind if name not in set(found.arriving)]
    for kind, names, state, remedy in (
        (
            "leaderless",
            found.offline,
            "no leader, so clients cannot use {}",
            "`odradek partition list --offline` says what each waits for",
        ),
        (
            "under-min-isr",
            found.under_min_isr,
            "fewer replicas in sync than min.insync.replicas, so writes with acks=all to {} are refused",
            "bring their brokers and disks back (`odradek partition list --under-replicated`)",
        ),
        (
            "under-replicated",
            behind,
            "fewer replicas in sync than {} should have",
            "bring their brokers and disks back, or wait while they catch up (`odradek partition list "
            "--under-replicated`)",
        ),
    ):
        if names:
            verb, them = ("has", "it") if len(names) == 1 else ("have", "them")
            if kind == "under-replicated":
                them = "it" if len(names) == 1 else "they"
            # Those below min.insync.replicas have been named already.
            more = "more " if kind == "under-replicated" and found.under_min_isr else ""
            yield Problem(
                kind,
                f"{counted(len(names), f'{more}partition')} {verb} {state.format(them)}: {_some(names)}",
                remedy,
                partitions=names,
            )


def _of_disks(picture: Picture) -> Iterator[Problem]:
    named = set()
    for described in picture.log_dirs:
        for each in described.directories:
            broker = described.broker
            if each.error is not None:
                if each.health is not None and each.health.is_released:
                    continue
                named.add(broker)
                yield Problem(
                    "disk-offline",
                    f"broker {broker}: the log directory {each.path} is offline",
                    "replace or mount its disk, then start the broker again (docs/disks.md)",
                    broker=broker,
                    path=each.path,
                )
            for text in health_texts(broker, each.path, each.health):
                yield Problem("disk-warning", text, "", is_warning=True, broker=broker, path=each.path)
            for text in uncleanable_texts(broker, each):
                yield Problem("cleaner-skips", text, "", is_warning=True, broker=broker, path=each.path)
    for broker, names in picture.away.items():
        if broker not in named:
            yield Problem(
                "disk-offline",
                f"broker {broker} has {counted(len(names), 'replica')} on a disk that is offline",
                "`odradek disk list` names the disk",
                broker=broker,
                partitions=names,
            )
    for broker, troubled in picture.troubles.items():
        for trouble in troubled:
            kind = trouble.trouble.value
            # A demoted disk works. An operator has decided that its replicas should not lead.
            remedy = {
                "full": "delete or move files and replicas of this disk (`odradek disk balance`)",
                "hung": "look at the disk; the broker's log says which call does not return",
            }.get(kind, "")
            yield Problem(
                f"disk-{kind}",
                trouble_text(broker, trouble),
                remedy,
                is_warning=kind == "demoted",
                broker=broker,
                path=trouble.path,
            )


def _of_transactions(picture: Picture) -> Iterator[Problem]:
    if picture.hanging is None:
        return
    for each in picture.hanging.found[:_TRANSACTIONS_MAX]:
        start = each.producer.current_transaction_start_offset
        yield Problem(
            "hanging-transaction",
            f"{each.topic}-{each.partition} has a transaction that is open since offset {start}, without a recent "
            "write, so read_committed consumers wait there",
            f"`odradek txn find-hanging --topic {each.topic}` shows how to end it",
            partitions=(f"{each.topic}-{each.partition}",),
        )
    left = len(picture.hanging.found) - _TRANSACTIONS_MAX
    if left > 0:
        yield Problem(
            "hanging-transaction",
            f"{counted(left, 'more transaction')} without a recent write {'is' if left == 1 else 'are'} open",
            "`odradek txn find-hanging` shows how to end each of them",
        )


def _of_unseen(picture: Picture) -> Iterator[Problem]:
    for each in picture.unseen:
        named = f" ({_some(each.partitions)})" if each.partitions else ""
        yield Problem(
            "not-seen",
            f"the {each.things}{named} were not seen: {each.reason}",
            each.remedy,
            broker=each.broker,
            partitions=each.partitions,
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES_MAX]) + (", ..." if len(names) > _NAMES_MAX else "")
