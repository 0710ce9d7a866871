"""Conversations about offsets in transactions: TxnOffsetCommit versions 3 to 5 with the epochs of members."""

from __future__ import annotations

from typing import Any

from odradek.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from odradek.wire.messages.end_txn import EndTxnRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.sync_group import SyncGroupRequestAssignment
from odradek.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.groups.beside_kafka.asking import Talk, case
from tests.groups.beside_kafka.classic_bytes import assignment, subscription

TRANSACTION = 1
ADDS_GROUP_SINCE = 5
"""The first version in which TxnOffsetCommit itself adds the group's partition to the transaction (KIP-890)."""


class Transaction:
    """One transaction of a new producer. Its requests match one version of TxnOffsetCommit."""

    def __init__(self, talk: Talk, version: int) -> None:
        self._talk = talk
        self._version = version
        self.name = f"transaction-{version}-{talk.group}"
        talk.find_coordinator(TRANSACTION, self.name)
        answer = talk.ask_when_loaded(InitProducerIdRequest(self.name, 60_000), 4)
        assert not answer.error_code, answer
        self.producer = (answer.producer_id, answer.producer_epoch)

    def add_group(self) -> None:
        """Add the group to the transaction, in versions in which the client must do so."""
        if self._version < ADDS_GROUP_SINCE:
            request = AddOffsetsToTxnRequest(self.name, *self.producer, self._talk.group)
            self._talk.keep(self._talk.ask(request, 3))

    def try_add(self) -> Any:
        """Send a request to add the group, without keeping the answer or its error."""
        request = AddOffsetsToTxnRequest(self.name, *self.producer, self._talk.group)
        return self._talk.ask_when_loaded(request, 3)

    def commit(
        self,
        member: str,
        epoch: int,
        partition: int = 0,
        *,
        topic: str = "T",
        group: str | None = None,
        instance: str | None = None,
        metadata: str = "",
        producer: tuple[int, int] | None = None,
    ) -> Any:
        """Commit offset 6 of a partition in the transaction, and keep the answer."""
        talk = self._talk
        named = TxnOffsetCommitRequestTopic(
            talk.topics.get(topic, topic), [TxnOffsetCommitRequestPartition(partition, 6, 0, metadata)]
        )
        request = TxnOffsetCommitRequest(
            self.name,
            talk.group if group is None else group,
            *(producer or self.producer),
            epoch,
            member,
            instance,
            [named],
        )
        return talk.keep(talk.ask(request, self._version))

    def end(self, committed: bool) -> None:
        """End the transaction."""
        version = 5 if self._version >= ADDS_GROUP_SINCE else 3
        answer = self._talk.ask(EndTxnRequest(self.name, *self.producer, committed), version)
        assert not answer.error_code, answer


@case
def transactions_of_members(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=2, U=1)
    talk.beat("a")
    for version in (3, 4, 5):
        transaction = Transaction(talk, version)
        if version < ADDS_GROUP_SINCE:
            transaction.commit("a", 2)
        transaction.add_group()
        transaction.commit("a", 2)
        transaction.commit("a", 2, topic="U")
        for member, epoch in (("a", 1), ("a", 3), ("a", -1), ("b", 2), ("", -1), ("", 2)):
            transaction.commit(member, epoch)
        transaction.commit("a", 2, instance="i")
        transaction.commit("a", 2, 9)
        transaction.commit("a", 2, topic="nowhere")
        transaction.commit("a", 2, metadata="m" * 5_000)
        producer_id, producer_epoch = transaction.producer
        transaction.commit("a", 2, producer=(producer_id, producer_epoch + 1))
        transaction.commit("a", 2, producer=(producer_id + 1_000_000, producer_epoch))
        for of_fetch in (8, 9, 10):
            talk.fetch(None, -1, stable=True, version=of_fetch)
        talk.fetch("a", 2, stable=True)
        transaction.end(version != 4)
        talk.fetch_when_stable(9)
    talk.beat("b")
    talk.beat("a", 2, by_number=True)
    talk.beat("b", -1)
    talk.beat("a", -1)
    transaction = Transaction(talk, 4)
    transaction.add_group()
    for member, epoch in (("a", 2), ("", -1)):
        transaction.commit(member, epoch)
    transaction.end(True)
    talk.fetch_when_stable(9)


@case
def transactions_of_no_group(talk: Talk) -> None:
    talk.create(T=1)
    for version in (3, 4, 5):
        transaction = Transaction(talk, version)
        transaction.add_group()
        transaction.commit("", -1, group="")
        transaction.commit("a", 2)
        transaction.commit("", 2)
        transaction.commit("", -1)
        transaction.end(True)
        talk.fetch_when_stable(9)


@case
def transactions_of_classic_members(talk: Talk) -> None:
    talk.create(T=2)
    topic = talk.topics["T"]
    member = talk.join("", subscription(topic), version=5, instance="i").member_id
    early = [Transaction(talk, version) for version in (3, 4, 5)]
    for transaction in early:
        transaction.add_group()
        transaction.commit(member, 1, instance="i")
    talk.sync(member, 1, [SyncGroupRequestAssignment(member, assignment(topic, [0, 1]))])
    for transaction in early:
        transaction.commit(member, 1, instance="i")
        for of_member, generation in ((member, 1), (member, 2), ("b", 1), ("", -1)):
            transaction.commit(of_member, generation)
        transaction.commit("b", 1, instance="i")
        transaction.commit("b", 1, instance="j")
    for transaction in early:
        transaction.end(True)
    talk.fetch_when_stable(9)
