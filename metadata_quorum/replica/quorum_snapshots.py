"""What snapshots do to the log of a quorum: a leader's takes its place, our own let its beginning go. PORTED.

A snapshot comes in chunks while the node goes on; only when it is whole and sound, and the core still wants it, does it
replace the log. A crash in between leaves a snapshot that the log does not lead to: at the next start it replaces the
log then (`raft/log_reading.py`), since whatever is in a snapshot is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from metadata_quorum.ports import OffsetAndEpoch, StoredSnapshot
from metadata_quorum.raft.effects import LoadSnapshot
from metadata_quorum.raft.roles import Follower
from metadata_quorum.replica.log_reading import snapshot_voters
from metadata_quorum.replica.snapshot_transfer import fetch_snapshot
from odradek.env.ports import ConnectionLost, DiskRefused
from wire.errors import ErrorCode, KafkaError, ProtocolError

if TYPE_CHECKING:
    from metadata_quorum.replica.raft_quorum import RaftQuorum

__all__ = ["DropBelow", "InstallSnapshot", "QuorumSnapshots"]


@attrs.frozen
class InstallSnapshot:
    """Put a snapshot that a leader gave in place of the log."""

    stored: StoredSnapshot


@attrs.frozen
class DropBelow:
    """Remove what our own snapshot covers."""

    end: OffsetAndEpoch


@attrs.frozen
class ExpireOld:
    """Remove what our snapshots cover and what is kept no longer."""


class QuorumSnapshots:
    """The snapshots of `RaftQuorum`."""

    def __init__(self, quorum: RaftQuorum) -> None:
        self._quorum = quorum
        self._installed: StoredSnapshot | None = None

    def take_installed(self) -> StoredSnapshot | None:
        installed, self._installed = self._installed, None
        return installed

    async def load(self, effect: LoadSnapshot) -> None:
        """Fetch a snapshot from the leader."""
        quorum = self._quorum
        epoch = quorum.leader_epoch

        def progressed() -> None:
            if not self._is_wanted(epoch):
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another leader was elected meanwhile")
            quorum.report(quorum.core.snapshot_progressed)

        address = quorum.address_of(effect.leader_id)
        try:
            if address is None:
                raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the leader's address is not known")
            stored = await fetch_snapshot(
                quorum.channel(address),
                quorum.snapshots,
                effect.snapshot,
                me=quorum.me,
                cluster_id=quorum.cluster_id,
                leader_epoch=epoch,
                clock=quorum.clock,
                workers=quorum.workers,
                request_timeout=quorum.config.request_timeout,
                progressed=progressed,
            )
        except (KafkaError, ProtocolError, ConnectionLost, DiskRefused) as error:
            quorum.logger.warning("metadata.snapshot_not_loaded", error=str(error))
            if self._is_wanted(epoch):
                quorum.report(quorum.core.snapshot_failed)
        else:
            quorum.perform_later(InstallSnapshot(stored))

    def _is_wanted(self, epoch: int) -> bool:
        role = self._quorum.core.role
        return isinstance(role, Follower) and role.loading_snapshot and role.epoch == epoch

    async def perform(self, effect: InstallSnapshot | DropBelow | ExpireOld) -> None:
        """Within a turn at the log. Raises `DiskError`."""
        quorum = self._quorum
        core = quorum.core
        if isinstance(effect, InstallSnapshot):
            stored = effect.stored
            if not self._is_wanted(core.epoch) or stored.end_offset <= core.high_watermark:
                quorum.logger.info("metadata.snapshot_not_needed", end_offset=stored.end_offset)
                core.snapshot_failed(quorum.clock.monotonic())
                return
            await quorum.patiently(lambda: quorum.log.install(stored.end_offset))
            voters = snapshot_voters(stored)
            core.snapshot_installed(
                stored.end, core.voters if voters is None else voters, quorum.clock.monotonic()
            )
            self._installed = stored
            quorum.logger.info("metadata.snapshot_installed", end_offset=stored.end_offset)
            await quorum.patiently(quorum.snapshots.delete_older)
            return
        known = core.log.snapshot
        if isinstance(effect, ExpireOld):
            if known is not None:
                covered = known.offset
                core.log.drop_prefix(await quorum.patiently(lambda: quorum.log.expire(covered)))
            return
        if known is None or known.offset < effect.end.offset <= core.high_watermark:
            core.log.take_snapshot(effect.end)
            end_offset = effect.end.offset
            core.log.drop_prefix(await quorum.patiently(lambda: quorum.log.drop_prefix(end_offset)))
