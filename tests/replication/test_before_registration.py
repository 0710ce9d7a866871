"""A broker that starts: what the metadata said of its former process makes it no leader."""

from __future__ import annotations

from odradek.data_plane.broker import Broker
from tests.replication.brokers import TOPIC, ReplicatedTopic


def test_a_start_commits_nothing_by_metadata_that_are_older_than_it() -> None:
    """The ISR may have shrunk to a dead process: its log has records that no other replica ever had.

    They would lie below the high watermark at once, and another leader may be elected without them.
    """

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.in_sync(1, 2, 3)
        assert await cluster.produce(1, b"committed") == (0, 0)
        cluster.controller.is_deaf = True
        for follower in (2, 3):
            cluster.crash(follower)
        assert await cluster.produce(1, b"never committed", acks=1) == (0, 1)
        partition = cluster.members[1].partition()
        assert (partition.log.high_watermark, partition.log.log_end_offset) == (1, 2)
        written = partition.leader_epoch
        cluster.crash(1)
        cluster.controller.elect(0, 1, isr=(1,))
        seen = []

        def look(broker: Broker) -> None:
            found = broker.topics[TOPIC].partitions[0]
            seen.append((found.is_leader, found.log.high_watermark, found.log.epochs.latest))

        cluster.before_registration = look
        await cluster.start(1)
        ((leads, high_watermark, epoch),) = seen
        assert not leads
        assert high_watermark <= 1
        assert epoch == written, "no record was written in the later epoch"
        partition = cluster.members[1].partition()
        assert partition.is_leader, "by metadata that know of this process"
        assert partition.log.high_watermark == 2

    ReplicatedTopic(min_isr=1).play(script)
