"""The simulated controller of one partition: it has the leader, the ISR and the unfenced brokers. PURE."""

from __future__ import annotations

from random import Random

import attrs

from odradek.data_plane.replication.isr_state import CommittedIsr, PendingIsr
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.wire.errors import ErrorCode
from sim.alone.replication_broker import Broker, Image

NODES = (1, 2, 3)

__all__ = ["NODES", "Controller", "Proposal"]


@attrs.define(eq=False)
class Proposal:
    """An AlterPartition request on its way to the controller, or its answer on the way back."""

    leader: int
    life: int
    proposal: PendingIsr
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    """(broker id, broker epoch) of each proposed in-sync replica. A follower's epoch is the broker epoch in its Fetch
    requests.
    """
    broker_epoch: int
    code: ErrorCode | None = None
    state: PartitionImage | None = None

    @classmethod
    def of(cls, node: Broker) -> Proposal:
        """Make the AlterPartition request for this leader's pending ISR change."""
        partition = node.partition
        proposal = partition.isr_state
        assert not isinstance(proposal, CommittedIsr)
        isr = tuple(
            (each, node.broker_epoch if each == node.node_id else partition.followers.broker_epoch_of(each))
            for each in proposal.proposed
        )
        return cls(
            node.node_id,
            node.life,
            proposal,
            partition.leader_epoch,
            partition.partition_epoch,
            isr,
            node.broker_epoch,
        )


class Controller:
    """The metadata of one partition. `images` has all versions of it so far, oldest first."""

    def __init__(self) -> None:
        self.state = PartitionImage(-1, 0, 0, NODES, NODES, (bytes(16),) * len(NODES))
        self.images: list[Image] = []
        self._brokers: dict[int, tuple[int, bool]] = {}
        """For each broker id, the broker's epoch, and True if the broker is unfenced."""
        self._next_epoch = 100

    def _change(self, **fields: object) -> None:
        epoch = self.state.partition_epoch + 1
        self.state = attrs.evolve(self.state, partition_epoch=epoch, **fields)  # type: ignore[arg-type]  # own fields
        self._tell()

    def _tell(self) -> None:
        self.images.append((self.state, dict(self._brokers)))

    def _is_unfenced(self, node_id: int) -> bool:
        return self._brokers.get(node_id, (0, False))[1]

    def register(self, node_id: int) -> int:
        """Register a broker and return its new broker epoch. The broker is removed from the ISR unless it is the only
        member (KIP-966).

        If the partition has no leader and the broker is in the ISR, the broker becomes the leader.
        """
        self._next_epoch += 1
        if self.images:
            self.fence(node_id)
        self._brokers[node_id] = (self._next_epoch, True)
        if self.state.leader < 0 and node_id in self.state.isr and self.images:
            self._change(leader=node_id, leader_epoch=self.state.leader_epoch + 1)
        else:
            self._tell()
        return self._next_epoch

    def fence(self, node_id: int) -> None:
        """Fence a broker. If it was the leader, another in-sync replica becomes the leader. The fenced broker stays
        in the ISR only if it is the only member.
        """
        if node_id in self._brokers:
            self._brokers[node_id] = (self._brokers[node_id][0], False)
        state = self.state
        isr = tuple(each for each in state.isr if each != node_id) or state.isr
        if state.leader == node_id:
            alive = [each for each in isr if self._is_unfenced(each)]
            self._change(leader=alive[0] if alive else -1, leader_epoch=state.leader_epoch + 1, isr=isr)
        elif isr != state.isr:
            self._change(isr=isr)
        else:
            self._tell()

    def unfence(self, node: Broker) -> None:
        """Unfence a broker."""
        self._brokers[node.node_id] = (node.broker_epoch, True)
        self._tell()

    def elect(self, random: Random) -> None:
        """Make a random unfenced in-sync replica the leader, if there is one."""
        alive = [each for each in self.state.isr if self._is_unfenced(each)]
        if alive:
            self._change(leader=random.choice(alive), leader_epoch=self.state.leader_epoch + 1)

    def decide(self, asked: Proposal) -> None:
        """Decide an ISR proposal: set its error code and the resulting state."""
        asked.code, asked.state = self._alter(asked), self.state

    def _alter(self, asked: Proposal) -> ErrorCode:
        """Perform Kafka's checks of AlterPartition, in Kafka's order. Apply the new ISR and return NONE if all pass."""
        state = self.state
        if self._brokers.get(asked.leader, (-1, False))[0] != asked.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if asked.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if asked.leader != state.leader:
            return ErrorCode.INVALID_REQUEST
        if asked.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if any(self._brokers.get(each) != (epoch, True) for each, epoch in asked.isr):
            return ErrorCode.INELIGIBLE_REPLICA
        self._change(isr=tuple(each for each, _ in asked.isr))
        return ErrorCode.NONE
