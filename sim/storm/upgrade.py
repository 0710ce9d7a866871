"""Nodes of the previous release, and their upgrade while the cluster is working. PORTED.

In the previous release the newest version of each API is one lower, and some features have a lower level
(`sim.machine.releases`). A cluster with nodes of both releases works with the old feature level. Nodes are restarted
with the new release one by one, while all other trouble continues. An operator tries again and again to raise the
level. The request must be refused while any node has the previous release, since a node stops if a level unknown to
it is finalized. The request must be accepted once all nodes have the new release.

Both rules hold only once all controllers have registered. As in Kafka, an unregistered node is left out of that
decision, and is refused when it tries to register. An operator may have unregistered a broker.
"""

from __future__ import annotations

from random import Random

from odradek.client.admin.admin_quorum import update_features
from odradek.client.errors import ClientError
from odradek.metadata_quorum.features import (
    ELIGIBLE_LEADER_REPLICAS,
    THIS_RELEASE,
    TRANSACTION_VERSION,
)
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.wire.errors import ErrorCode, KafkaError
from sim.history import SafetyViolation
from sim.machine.cluster_members import Cluster
from sim.machine.world import Liveness
from sim.storm.storm import Storm

NEW_LEVELS = {ELIGIBLE_LEADER_REPLICAS: 1, TRANSACTION_VERSION: 2}
CALL_SECONDS = 5.0
DECIDED_SECONDS_MAX = 120.0
UPGRADE_PROBABILITY = 0.7

__all__ = [
    "level_must_be_decided",
    "rolling_upgrade",
]


async def rolling_upgrade(storm: Storm, random: Random) -> None:
    """Restart the nodes of the previous release with this release, one by one. In between, try to raise the level."""
    behind = [member for member in storm.cluster.members if member.release is not THIS_RELEASE]
    random.shuffle(behind)
    while await storm.calm(random, 8.0):
        if not behind or random.random() > UPGRADE_PROBABILITY:
            storm.begin(f"level {await _raise_level(storm.cluster)}")
            storm.end()
        elif storm.may_die(behind[-1]):
            member = behind.pop()
            storm.begin(f"upgrade {member.name}")
            member.release = THIS_RELEASE
            if member.is_up():  # A node that is down will start with the new release.
                await storm.stop(member)
                if not member.is_up():
                    member.launch()
            storm.end()


def _behind(cluster: Cluster) -> list[str]:
    """List the registered nodes that have the previous release."""
    newest = max(_images(cluster), key=lambda image: image.offset, default=None)
    if newest is None:
        return []
    registered = {*newest.brokers, *newest.controllers}
    behind = [member for member in cluster.members if member.speaks is not THIS_RELEASE]
    return [member.name for member in behind if member.config.node_id in registered]


def _images(cluster: Cluster) -> list[MetadataImage]:
    return [
        member.node.metadata.committed_image
        for member in cluster.members
        if member.is_up() and member.node is not None and member.node.metadata is not None
    ]


def _knows_all_controllers(cluster: Cluster) -> bool:
    return any(len(image.controllers) == len(cluster.controllers) for image in _images(cluster))


async def _raise_level(cluster: Cluster) -> str:
    """Try to finalize the level of this release, and return the outcome. Fail the run if that succeeds although a
    node still has the previous release.
    """
    if not _knows_all_controllers(cluster):
        return "not tried"
    client = cluster.observer
    try:
        await client.run(update_features(client.core, NEW_LEVELS, timeout=CALL_SECONDS))
    except KafkaError as error:
        return error.code.name
    except ClientError as error:
        return type(error).__name__
    behind = _behind(cluster)
    if behind:
        told = ", ".join(behind)
        cluster.world.refute(SafetyViolation(f"{NEW_LEVELS} was finalized, but {told} does not support it"))
    return "raised"


async def level_must_be_decided(cluster: Cluster) -> None:
    """Check that the level is raised in the end if all nodes have this release, and is refused otherwise. Raises
    `Liveness` if neither happens in time.
    """
    world = cluster.world
    wanted = ErrorCode.INVALID_UPDATE_VERSION.name if _behind(cluster) else "raised"
    deadline = world.now + DECIDED_SECONDS_MAX
    while (said := await _raise_level(cluster)) != wanted:
        if world.now >= deadline:
            raise Liveness(
                f"seed {world.seed}: {_behind(cluster)} are behind, but raising the level ends in {said}"
            )
        await world.sleep(1.0)
