"""The controller's quota of metadata changes (KIP-599): strict and permissive clients."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.envelope import Sender
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.quotas.mutation_quotas import MutationQuotas
from odradek.security.doors.door import Admitted
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from odradek.wire.messages.metadata_records import ClientQuotaRecord, EntityData, PartitionRecord, TopicRecord

EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
ANN = Sender("User:ann", "app", "127.0.0.1")


def image(rate: float) -> MetadataImage:
    """Make an image with a topic `there` of four partitions, and with a quota of user ann."""
    builder = ImageBuilder(MetadataImage())
    records: list[Any] = [
        ClientQuotaRecord([EntityData("user", "ann")], "controller_mutation_rate", rate, False),
        TopicRecord("there", bytes(15) + b"\1"),
    ]
    records += [PartitionRecord(number, bytes(15) + b"\1", [1], [1], [], [], 1, 0, 0) for number in range(4)]
    for offset, record in enumerate(records):
        builder.replay(offset, record, 1)
    return builder.build()[0]


def quotas() -> MutationQuotas:
    return MutationQuotas(ControllerSettings(quota_windows=2, quota_window_seconds=1))


def create(*names: str, partitions: int = 3) -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(name, partitions, 1) for name in names], 1000, False)


def test_a_strict_client_in_debt_is_refused_and_told_how_long() -> None:
    """KIP-599: once the bucket is overdrawn, CreateTopics 6 refuses each further topic and names the wait."""
    made, now = quotas(), 0.0
    admitted = made.admit(image(2.0), ANN, create("a", "b", "c"), 6, now)
    assert isinstance(admitted, Admitted)
    assert [each.name for each in admitted.request.topics] == ["a", "b"], "4 tokens: 3 fit, 3 more overdraw"
    answer = admitted.merge(CreateTopicsResponse(0, []))
    assert [(each.name, each.error_code) for each in answer.topics] == [("c", EXCEEDED)]
    assert answer.throttle_time_ms == 1001
    later = made.admit(image(2.0), ANN, create("c"), 6, 1.0)
    assert isinstance(later, Admitted)
    assert len(later.request.topics) == 1


def test_a_permissive_client_is_served_and_told_to_wait() -> None:
    """KIP-599: CreateTopics 5, which lacks the error for a used-up quota, is served, and the answer names the wait."""
    admitted = quotas().admit(image(2.0), ANN, create("a", "b", "c"), 5, 0.0)
    assert isinstance(admitted, Admitted)
    assert len(admitted.request.topics) == 3
    assert admitted.merge(CreateTopicsResponse(0, [])).throttle_time_ms == 2501


def test_what_cannot_be_done_costs_nothing() -> None:
    """A topic that exists, an invalid name and a name given twice get their own errors and are not charged."""
    made = quotas()
    for _ in range(10):
        made.admit(image(1.0), ANN, create("there", "bad/name", "x", "x"), 6, 0.0)
    admitted = made.admit(image(1.0), ANN, create("a"), 6, 0.0)
    assert isinstance(admitted, Admitted)
    assert len(admitted.request.topics) == 1


def test_more_partitions_than_one_request_may_ask_for_cost_nothing() -> None:
    """A request for too many partitions is refused without charge. Otherwise one frame could block a user for years."""
    huge = (1 << 31) - 1
    growth = CreatePartitionsRequest([CreatePartitionsTopic("there", huge, None)], 1000, False)
    twice = CreatePartitionsRequest([CreatePartitionsTopic("there", 9_000, None)] * 2, 1000, False)
    requests: tuple[tuple[Any, int], ...] = (
        (create("a", partitions=huge), 6),
        (create("a", partitions=huge), 5),
        (create("a", "b", partitions=6_000), 6),
        (growth, 3),
        (growth, 2),
        (twice, 3),
    )
    for request, version in requests:
        made = quotas()
        first = made.admit(image(1.0), ANN, request, version, 0.0)
        assert isinstance(first, Admitted)
        assert first.request == request, "the controller refuses it, with an error of its own"
        later = made.admit(image(1.0), ANN, create("c"), 6, 0.0)
        assert isinstance(later, Admitted)
        assert len(later.request.topics) == 1


@pytest.mark.parametrize("rate", [1e-7, 5e-324])
def test_a_wait_beyond_what_an_answer_can_name_is_the_longest_that_it_can(rate: float) -> None:
    """With a very small quota the answer shows the longest wait that fits its 32 bits."""
    made = quotas()
    assert isinstance(made.admit(image(rate), ANN, create("a"), 6, 0.0), Admitted)
    for request, version, empty in (
        (create("b"), 6, CreateTopicsResponse(0, [])),
        (create("b"), 5, CreateTopicsResponse(0, [])),
    ):
        admitted = made.admit(image(rate), ANN, request, version, 0.0)
        assert isinstance(admitted, Admitted)
        assert admitted.merge(empty).throttle_time_ms == (1 << 31) - 1


def test_partitions_that_are_deleted_or_added_are_charged() -> None:
    """KIP-599: deletions by name and by id are charged, and so are partitions that are added to a topic."""
    there = image(1.0)
    by_name = DeleteTopicsRequest([], ["there"], 1000)
    by_id = DeleteTopicsRequest([DeleteTopicState(None, bytes(15) + b"\1")], [], 1000)
    growth = CreatePartitionsRequest([CreatePartitionsTopic("there", 8, None)], 1000, False)
    for request, version, empty, results in (
        (by_name, 5, DeleteTopicsResponse(0, []), "responses"),
        (by_id, 6, DeleteTopicsResponse(0, []), "responses"),
        (growth, 3, CreatePartitionsResponse(0, []), "results"),
    ):
        made = quotas()
        first = made.admit(there, ANN, request, version, 0.0)
        assert isinstance(first, Admitted)
        assert first.request == request
        second = made.admit(there, ANN, request, version, 0.0)
        assert isinstance(second, Admitted)
        told = getattr(second.merge(empty), results)
        assert [each.error_code for each in told] == [EXCEEDED]


def test_endless_clients_take_no_memory_and_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients beyond the limit of buckets share one bucket, until a bucket without debt makes room."""
    monkeypatch.setattr("odradek.metadata_quorum.quotas.mutation_quotas.BUCKETS_MAX", 10)
    builder = ImageBuilder(MetadataImage())
    each = [EntityData("client-id", None)]
    builder.replay(0, ClientQuotaRecord(each, "controller_mutation_rate", 1.0, False), 1)
    made, here = quotas(), builder.build()[0]

    def lets_in(name: str, now: float) -> bool:
        sender = Sender("User:eve", name, "127.0.0.1")
        admitted = made.admit(here, sender, create("a"), 6, now)
        return isinstance(admitted, Admitted) and len(admitted.request.topics) == 1

    assert lets_in("debtor", 0.0)
    outcomes = [lets_in(f"c{number}", 0.0) for number in range(100)]
    assert outcomes == [True] * 10 + [False] * 90
    assert made.statistics()["buckets"] == 11
    assert lets_in("late", 10.0)
    assert made.statistics()["buckets"] == 1


def test_who_has_no_quota_is_let_in() -> None:
    """A quota of user ann does not limit user bob."""
    made = quotas()
    assert made.admit(image(0.1), Sender("User:bob", "app", ""), create("a"), 6, 0.0) is None
