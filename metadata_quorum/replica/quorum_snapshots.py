"""The effects of snapshots on a replica's log: a leader's snapshot is fetched and replaces it; the node's own
allow the removal of its beginning. PORTED.

A leader's snapshot is fetched in chunks while the node keeps working. It replaces the log if it is complete
and undamaged, and the core still needs it. If the node crashes just before the replacement, the snapshot on
the disk ends beyond the log. At the next start the snapshot replaces the log (`log_reading.py`), because all
records in a snapshot are committed.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.env.ports import ConnectionLost, DiskRefused
from odradek.metadata_quorum.ports import OffsetAndEpoch, StoredSnapshot
from odradek.metadata_quorum.raft.effects import LoadSnapshot
from odradek.metadata_quorum.raft.roles import Follower
from odradek.metadata_quorum.replica.asking.quorum_peers import QuorumPeers
from odradek.metadata_quorum.replica.driver_protocol import (
    DropBelow,
    ExpireOld,
    InstallSnapshot,
    QuorumDriver,
    SnapshotEffect,
)
from odradek.metadata_quorum.replica.log_reading import snapshot_voters
from odradek.metadata_quorum.replica.snapshot_transfer import fetch_snapshot
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError, ProtocolError
from odradek.wire.messages.control_records import KRaftVersionRecord
from odradek.wire.structure import Message

__all__ = ["QuorumSnapshots"]

EXPIRATION_CHECK_SECONDS = 60.0
"""The time between two removals of old records, in seconds, as in Kafka."""


class QuorumSnapshots:
    """Replaces the log by leaders' snapshots, and removes the parts that this node's snapshots cover."""

    def __init__(self, driver: QuorumDriver, peers: QuorumPeers) -> None:
        self._driver = driver
        self._settings = driver.settings
        self._peers = peers
        self._installed: StoredSnapshot | None = None
        self.is_installing = False
        """True while a snapshot replaces the log. The core learns of it afterwards."""

    def take_installed(self) -> StoredSnapshot | None:
        """Return the leader's snapshot that has replaced this log since the last call. Returns None if the
        log was not replaced.
        """
        installed, self._installed = self._installed, None
        return installed

    def written(self, end: OffsetAndEpoch) -> None:
        """Called when this node has durably written a snapshot that ends at `end`: remove the log below it."""
        self._driver.perform_later(DropBelow(end))

    async def expire_old(self) -> None:
        """Remove old records every `EXPIRATION_CHECK_SECONDS`. A record is removed if a snapshot covers it,
        and it is older than the retention. Runs until cancelled.
        """
        clock = self._driver.clock
        while True:
            await clock.sleep_until(clock.monotonic() + EXPIRATION_CHECK_SECONDS)
            self._driver.perform_later(ExpireOld())

    def control_records_below(self, offset: int) -> Sequence[Message]:
        """Return the control records for a snapshot that ends at `offset`: the KRaft version and the voters.

        The result is empty if the configuration names the voters. It is also empty if a leader's snapshot has
        just replaced this part of the log. Then no other snapshot of this part is needed.
        """
        known = [voters for at, voters in self._driver.core.log.voter_history if at < offset]
        if not known or known[-1] is self._settings.static_voters:
            return ()
        return (KRaftVersionRecord(0, 1), known[-1].to_record())

    async def load(self, effect: LoadSnapshot) -> None:
        """Fetch the snapshot that the core wants from the leader, and queue its installation.

        A failure is reported to the core.
        """
        driver = self._driver
        epoch = driver.core.epoch

        def progressed() -> None:
            if not self._is_wanted(effect.snapshot, epoch):
                reached("quorum.snapshot_transfer_abandoned")
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    "the voters elected another leader while this node fetched the snapshot",
                )
            driver.report(driver.core.snapshot_progressed)

        address = self._peers.address_of(effect.leader_id)
        try:
            if address is None:
                raise KafkaError(
                    ErrorCode.BROKER_NOT_AVAILABLE, "the address of the quorum's leader is not known"
                )
            stored = await fetch_snapshot(
                driver.env,
                self._settings,
                self._peers.channel(address),
                driver.snapshot_store,
                effect.snapshot,
                epoch,
                progressed,
            )
        except (KafkaError, ProtocolError, ConnectionLost, DiskRefused) as error:
            reached("quorum.snapshot_not_loaded")
            driver.logger.warning("metadata.snapshot_not_loaded", error=str(error))
            if self._is_wanted(effect.snapshot, epoch):
                driver.report(driver.core.snapshot_failed)
        else:
            driver.perform_later(InstallSnapshot(stored, epoch))

    def _is_wanted(self, snapshot: OffsetAndEpoch, epoch: int) -> bool:
        """True if this replica still waits for that snapshot from the leader of that epoch. The next leader may have
        named another one, which is fetched beside it.
        """
        role = self._driver.core.role
        return isinstance(role, Follower) and role.snapshot == snapshot and role.epoch == epoch

    async def perform(self, effect: SnapshotEffect) -> None:
        """Perform an `InstallSnapshot`, `DropBelow` or `ExpireOld`, while no other task uses the log.

        Raises `DiskError`.
        """
        driver = self._driver
        core = driver.core
        if isinstance(effect, InstallSnapshot):
            await self._install(effect.stored, effect.epoch)
            return
        known = core.log.snapshot
        if isinstance(effect, ExpireOld):
            if known is not None:
                covered = known.offset
                core.log.drop_prefix(await driver.patiently(lambda: driver.log.expire(covered)))
            return
        if known is None or known.offset < effect.end.offset <= core.high_watermark:
            core.log.take_snapshot(effect.end)
            end_offset = effect.end.offset
            core.log.drop_prefix(await driver.patiently(lambda: driver.log.drop_prefix(end_offset)))

    async def _install(self, stored: StoredSnapshot, epoch: int) -> None:
        """Replace the log by a leader's snapshot, if this replica still waits for it. Raises `DiskError`."""
        driver = self._driver
        core = driver.core
        is_wanted = self._is_wanted(stored.end, epoch)
        if not is_wanted or stored.end_offset <= core.high_watermark:
            reached("quorum.snapshot_came_too_late")
            driver.logger.info("metadata.snapshot_not_needed", end_offset=stored.end_offset)
            if is_wanted:
                core.snapshot_failed(driver.clock.monotonic())
            return
        self.is_installing = True
        await driver.patiently(lambda: driver.log.install(stored.end_offset))
        voters = snapshot_voters(stored)
        core.snapshot_installed(
            stored.end, core.voters if voters is None else voters, driver.clock.monotonic()
        )
        self.is_installing = False
        reached("quorum.snapshot_installed")
        self._installed = stored
        driver.logger.info("metadata.snapshot_installed", end_offset=stored.end_offset)
        await driver.patiently(driver.snapshot_store.delete_older)
