"""A leadership is lost and won again while a produce request waits between two of its batches."""

from __future__ import annotations

import pytest

from odradek.data_plane.handlers.producing.batches_left import BatchesLeft
from odradek.serving.steps import Steps, asked
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.log.support import batch
from tests.replication.brokers import TOPIC, ReplicatedTopic

BEFORE, WON_AGAIN, LOST, UNTOUCHED = range(4)
"""The partitions of the request. Only the batch of the first one is appended before the wait."""


def epochs(cluster: ReplicatedTopic, index: int) -> list[int]:
    """Return the leader epoch of each batch in the log of broker 1."""
    log = cluster.members[1].partition(index).log
    data = log.read_bytes(0, 1 << 20, upper_bound=log.log_end_offset, min_one=True)
    return [header.partition_leader_epoch for _, header in iter_batches(data)]


@pytest.mark.parametrize("acks", [-1, 1])
def test_batches_behind_the_wait_are_appended_in_the_new_term(
    acks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With acks=all, a batch appended before the wait fails. A later batch gets the leader epoch of its append, or an
    error if another broker leads."""
    ready = BatchesLeft.ready

    async def script(cluster: ReplicatedTopic) -> None:
        controller = cluster.controller

        def lead(index: int, leader: int) -> None:
            controller.elect(index, leader)

        async def known() -> None:
            await cluster.until(
                lambda: all(
                    cluster.members[1].partition(index).image is image
                    for index, image in controller.partitions.items()
                )
            )

        async def change() -> None:
            assert epochs(cluster, BEFORE) == [terms[BEFORE]]
            assert epochs(cluster, WON_AGAIN) == []
            for index in (BEFORE, WON_AGAIN, LOST):
                lead(index, 2)
            await known()
            for index in (BEFORE, WON_AGAIN):
                lead(index, 1)
            await known()
            # From here on the controller answers: the ISR becomes broker 1 alone, so all its records are committed.
            controller.is_deaf = False

        def ready_after_change(batches: BatchesLeft, topic: int, partition: int) -> Steps[None]:
            if partition == WON_AGAIN:
                yield asked(change)
            yield from ready(batches, topic, partition)

        for index in controller.partitions:
            lead(index, 1)
            await cluster.in_sync(1, 2, index=index)
        await known()
        controller.is_deaf = True
        cluster.crash(2)
        terms = {index: image.leader_epoch for index, image in controller.partitions.items()}
        monkeypatch.setattr(
            "odradek.data_plane.handlers.producing.produce.PARTITIONS_PER_TURN", 1, raising=True
        )
        monkeypatch.setattr(BatchesLeft, "ready", ready_after_change)
        sent = [PartitionProduceData(index, bytes(batch(1, value=b"v"))) for index in controller.partitions]
        request = ProduceRequest(None, acks, 4000, [TopicProduceData(TOPIC, bytes(16), sent)])
        response = await cluster.ask(1, request, version=9)
        answers = [
            (ErrorCode(each.error_code), each.base_offset)
            for each in response.responses[0].partition_responses
        ]
        refused, done = (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1), (ErrorCode.NONE, 0)
        assert answers == [refused if acks == -1 else done, done, refused, done]
        assert epochs(cluster, WON_AGAIN) == [terms[WON_AGAIN] + 2]
        assert epochs(cluster, LOST) == []
        assert epochs(cluster, UNTOUCHED) == [terms[UNTOUCHED]]

    ReplicatedTopic(partitions=4, replicas=(1, 2)).play(script)
