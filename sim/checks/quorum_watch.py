"""A client that asks for the quorum's committed offset every second. The records below that offset are compared with
the records that were committed at the same offsets before. PORTED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.client.errors import ClientError
from odradek.wire.errors import KafkaError
from odradek.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from sim.replicas import Committed

if TYPE_CHECKING:
    from sim.machine.cluster_members import Cluster

__all__ = ["watch_quorum"]

LOOK_AGAIN_SECONDS = 1.0
"""The pause between two requests in seconds. `sim.checks.watch` checks each voter's committed records far more often.
"""
ANSWER_MS_MAX = 2000


async def watch_quorum(cluster: Cluster, committed: Committed) -> None:
    """Send DescribeQuorum again and again, and pass the leader's log and committed offset to `committed`. Never
    returns.
    """
    ask = DescribeQuorumRequest(
        [DescribeQuorumRequestTopicData("__cluster_metadata", [DescribeQuorumRequestPartitionData(0)])]
    )
    voters = {member.config.node_id: member for member in cluster.controllers}
    while True:
        await cluster.world.sleep(LOOK_AGAIN_SECONDS)
        try:
            answer: DescribeQuorumResponse = await cluster.observer.request(ask, timeout_ms=ANSWER_MS_MAX)
        except (KafkaError, ClientError):
            continue
        if answer.error_code or answer.topics[0].partitions[0].error_code:
            continue
        described = answer.topics[0].partitions[0]
        leader = voters[described.leader_id]
        committed.see(leader.name, cluster.metadata_log(leader), described.high_watermark)
