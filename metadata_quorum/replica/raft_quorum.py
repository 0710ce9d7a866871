"""One running replica of the metadata quorum: the driver of the Raft core, with its log, peers and clock.
PORTED.

Theory of operation
-------------------
The core (`raft/core.py`) decides; this driver reports events to it and performs its effects. After every
report `_pump` performs the effects in order. Most effects are performed at once. Some must be on the disk
before the next effect: a vote, a truncation of the log, a leader's batches. These effects wait for `run`, the
only task that changes the end of the log. So a crash can leave at most one incomplete write.

**Leading.** Decisions get their offsets at once and wait in memory (`DecisionLog`). `run` takes all waiting
decisions, writes them as one batch, reports it to the core, and syncs: group commit without a timer
(`quorum_leader.py`). Waiting followers get the batch during this leader's own sync. The high watermark
advances when a majority has synced. A late sync does not delay decisions if the other voters are a majority.
After `SYNC_SECONDS_MAX` the sync counts as failed (`on_hung_disk`).

**Not leading.** `LostLeadership` drops the waiting decisions, and the state machine answers their requests.

**Failures.** A full disk or a lack of file descriptors is not a bug (`DiskRefused`). Nothing was written, and
the write is repeated every second. When too many decisions wait, `has_room` becomes false. A leader with
other voters resigns. Any other `DiskError`, and any broken invariant of the core, ends `run`, and thus the
node.

Requests from this node are in `asking/`, requests to this node in `quorum_requests.py`. `quorum_snapshots.py`
has the effects of snapshots on the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from odradek.env.ports import DiskRefused, Env, Log, TaskGroup
from odradek.metadata_quorum.features import KRAFT_VERSION_LEVEL
from odradek.metadata_quorum.ports import (
    PeerChannels,
    QuorumStateStore,
    ReplicatedLog,
    SnapshotStore,
    StoredSnapshot,
)
from odradek.metadata_quorum.raft.core import RaftCore
from odradek.metadata_quorum.raft.effects import (
    Answer,
    AppendFetched,
    Effect,
    HighWatermarkAdvanced,
    LoadSnapshot,
    LostLeadership,
    SaveState,
    Send,
    TookLeadership,
    Truncate,
)
from odradek.metadata_quorum.raft.log_state import Batch, LogState
from odradek.metadata_quorum.raft.roles import Candidate, Leader, Prospective, Resigned
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.metadata_quorum.replica.asking.quorum_peers import QuorumPeers
from odradek.metadata_quorum.replica.driver_protocol import (
    DropBelow,
    ExpireOld,
    InstallSnapshot,
    QuorumSettings,
    SnapshotEffect,
)
from odradek.metadata_quorum.replica.log_reading import read_log_state
from odradek.metadata_quorum.replica.log_tail import append_batches
from odradek.metadata_quorum.replica.quorum_leader import SYNC_SECONDS_MAX, QuorumLeader
from odradek.metadata_quorum.replica.quorum_requests import QuorumRequests
from odradek.metadata_quorum.replica.quorum_snapshots import QuorumSnapshots
from odradek.metadata_quorum.replica.turns import Turns
from odradek.named_states import reached
from odradek.wire.structure import Message

__all__ = ["RaftQuorum"]

T = TypeVar("T")

DISK_FULL_RETRY_SECONDS = 1.0
NOTIFYING_SECONDS_MAX = 0.5
"""The longest time, in seconds, that a stopping leader spends on notifying its preferred successors. A limit
is needed because some voters may be dead.
"""
LONE_PATIENCE_SECONDS = 10.0
"""The time, in seconds, for which the only voter of a quorum waits for its own disk when it stops."""
IDLE_SECONDS_MAX = 3600.0
ON_DISK = SaveState | Truncate | AppendFetched | SnapshotEffect
"""The effects that `run` performs on the disk, before any later effect."""


class RaftQuorum:
    """One running replica of the metadata quorum.

    Call `open` first, then run `run` as a task. `decisions` is the log for the state machine, on leaders and
    followers.
    """

    def __init__(
        self,
        env: Env,
        log: ReplicatedLog,
        snapshots: SnapshotStore,
        store: QuorumStateStore,
        settings: QuorumSettings,
        logger: Log,
    ) -> None:
        self.env = env
        self.clock = env.clock
        self.settings = settings
        self.log = log
        self.snapshot_store = snapshots
        self.logger = logger
        self._store = store
        self._tasks: TaskGroup
        self._core: RaftCore | None = None
        self._effects: deque[Effect | SnapshotEffect] = deque()
        self._upkeep: deque[DropBelow | ExpireOld] = deque()
        """Removals of log parts that this node's snapshots cover. They do not delay effects of the core."""
        self.on_hung_disk: Callable[[], None] = lambda: None
        """Called once, when this leader's disk has hung for so long that the node must end."""
        self._is_hung = False
        self._is_pumping = False
        self._is_blocked = False
        self._is_stopped = False
        self._failure: BaseException | None = None
        self._wake = env.event()
        self._ended = env.event()
        """Set when `run` no longer uses the disk."""
        self._sleeping_until = float("inf")
        self._earlier = env.event()
        self._logged_no_room = False
        self._observers: list[Callable[[], None]] = []
        self._notified: tuple[int | None, int, bool, int] = (None, -1, False, -1)
        self._electing: tuple[float, int] | None = None
        """The start of this node's present attempt to be elected: the time of the first request for votes, in
        monotonic seconds, and the epoch at that time. None while this node follows or leads.
        """
        self.elections = 0
        self.election_seconds = 0.0
        self._log_turns = Turns(env.event)
        """A lock between tasks that read the log in workers, and tasks that remove parts of it."""
        self.decisions = QuorumLeader(self)
        self.peers = QuorumPeers(self)
        self.snapshots = QuorumSnapshots(self, self.peers)
        self._requests = QuorumRequests(self, self.decisions, self.peers)

    # -- the leader -------------------------------------------------------------------------------------------------

    @property
    def core(self) -> RaftCore:
        assert self._core is not None, "the quorum was used before it was opened"
        return self._core

    @property
    def is_open(self) -> bool:
        return self._core is not None

    @property
    def leader_id(self) -> int | None:
        return None if self._core is None else self._core.leader_id

    @property
    def leader_epoch(self) -> int:
        return -1 if self._core is None else self._core.epoch

    @property
    def is_running(self) -> bool:
        """True while the quorum accepts requests: it was opened, and has neither stopped nor failed."""
        return self._core is not None and not self._is_stopped and self._failure is None

    @property
    def voters(self) -> VoterSet:
        return self.core.voters

    @property
    def has_dynamic_voters(self) -> bool:
        """True if the log, or the snapshot before it, names the voters (kraft.version 1)."""
        return self.core.log.voters is not self.settings.static_voters

    @property
    def kraft_version(self) -> int:
        """The finalized level of `kraft.version`: 0 if the configuration names the voters, 1 if the log does."""
        return KRAFT_VERSION_LEVEL if self._core is not None and self.has_dynamic_voters else 0

    @property
    def heard_leader(self) -> tuple[int, float] | None:
        """The last other leader that has answered this node, and when, in monotonic seconds."""
        return None if self._core is None else self._core.heard_leader

    def silent_seconds(self) -> dict[int, float]:
        """Return the seconds since the last fetch of each other voter that has fetched from this leader, by node id.

        On other nodes the result is empty.
        """
        role, now = self.core.role if self._core is not None else None, self.clock.monotonic()
        if not isinstance(role, Leader):
            return {}
        known = [(each.key.node_id, role.progress_of(each.key)) for each in self.core.voters.voters]
        return {
            node_id: now - max(progress.last_fetch, role.began)
            for node_id, progress in known
            if progress is not None and node_id != self.settings.me.node_id
        }

    def leader_address(self) -> tuple[str, int] | None:
        """Return host and port at which the leader serves controllers' requests; None while no leader is
        known.
        """
        return None if self._core is None else self.peers.leader_address()

    def start_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Start a task that ends with the node."""
        self._tasks.start_soon(function, *args, name="quorum")

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of the leader or its epoch, and whenever this node begins or
        ceases to lead.
        """
        self._observers.append(callback)

    # -- start and stop ---------------------------------------------------------------------------------------

    async def open(self, tasks: TaskGroup, peers: PeerChannels) -> StoredSnapshot | None:
        """Read the epochs and voters from the log. Returns the newest snapshot; None if there is none. `run`
        will use `tasks` and `peers`.

        Raises `MetadataLogCorrupt`, `DiskError`.
        """
        self._tasks = tasks
        self.peers.connect(peers)
        stored = self._store.load()
        snapshot = await self.env.workers.run(self.snapshot_store.newest)
        state: LogState = await self.patiently(
            lambda: read_log_state(self.log, snapshot, self.settings.static_voters)
        )
        self._core = RaftCore(
            self.settings.me,
            state,
            stored,
            self.settings.raft,
            self.env.random,
            self.clock.monotonic(),
            bootstrap=self.peers.bootstrap_ids,
        )
        self.decisions.high_watermark = self._core.high_watermark
        self.peers.own_copy.judge()
        return snapshot

    async def run(self) -> None:
        """Perform the core's effects on the disk, until cancelled or stopped.

        Raises `DiskError`, `MetadataLogCorrupt`, or `AssertionError` for a broken invariant.
        """
        self._tasks.start_soon(self._keep_time, name="quorum clock")
        self.report(self.core.tick)
        while not self._is_stopped:
            if self._failure is not None:
                raise self._failure
            self._wake = self.env.event()
            try:
                worked = await self._work()
            except DiskRefused:
                if self.is_running:
                    raise
                reached("quorum.stopped_without_room")
                # The node is stopping, so do not wait for free space.
                break
            if not worked:
                await self._wake.wait()
        self._ended.set()

    async def resign_and_drain(self, others_until: float = float("inf")) -> None:
        """Wait until all decisions are committed, and then resign. This is for a clean stop. The wait for
        other nodes ends at `others_until` (monotonic seconds).
        """
        clock = self.clock
        patience = min(clock.monotonic() + self.settings.raft.fetch_timeout_seconds, others_until)
        if self.decisions.epoch >= 0 and self.decisions.high_watermark < self.decisions.end_offset:
            reached("quorum.drained_before_stop")
            committed = self.env.event()
            end_offset = self.decisions.end_offset

            def note(high_watermark: int) -> None:
                if high_watermark >= end_offset:
                    committed.set()

            self.decisions.subscribe(note)
            if not self._has_others():
                # This node is the only voter, so nobody else can commit these records later. Therefore a slow
                # disk gets more time. But a full disk must not keep the node from stopping.
                patience = clock.monotonic() + LONE_PATIENCE_SECONDS
            with clock.timeout_at(patience):
                await committed.wait()
            self.decisions.unsubscribe(note)
        if self.decisions.epoch >= 0 and self._has_others():
            self.report(self.core.resign)
            until = clock.monotonic() + NOTIFYING_SECONDS_MAX
            while self._is_notifying() and clock.monotonic() < until:
                await clock.sleep_until(clock.monotonic() + self.settings.raft.retry_backoff_seconds)
        self._is_stopped = True
        self._wake.set()
        await self._ended.wait()

    def _has_others(self) -> bool:
        return not self.core.voters.is_only(self.settings.me)

    def _is_notifying(self) -> bool:
        role = self.core.role
        return isinstance(role, Resigned) and bool(role.to_notify)

    async def _keep_time(self) -> None:
        clock = self.clock
        # After a failure no events are reported any more, so a passed deadline would stay due for ever.
        while not self._is_stopped and self._failure is None:
            self._sleeping_until = self._next_deadline()
            self._earlier = self.env.event()
            with clock.timeout_at(self._sleeping_until):
                await self._earlier.wait()
            self._sleeping_until = float("inf")
            self._wake.set()
            self.report(self.core.tick)
            if self.decisions.look_at_disk() and not self._is_hung:
                self._is_hung = True
                self.logger.error("metadata.disk_hangs", waited_s=round(SYNC_SECONDS_MAX))
                self.on_hung_disk()

    def _next_deadline(self) -> float:
        now = self.clock.monotonic()
        deadline = min(self.core.next_deadline(), self.decisions.next_deadline(), now + IDLE_SECONDS_MAX)
        no_room_until = self.decisions.no_room_until
        return min(deadline, no_room_until) if no_room_until > now else deadline

    # -- events and effects -----------------------------------------------------------------------------------

    def report(self, report: Callable[..., None], *args: Any, **options: Any) -> None:
        """Report an event to the core. `report` is the method of the core to call, with these arguments and the present
        time. Then perform the core's effects.
        """
        if self._failure is not None or self._is_stopped:
            return
        try:
            report(*args, self.clock.monotonic(), **options)
        except Exception as error:  # noqa: BLE001 - `run` raises it, since the reporting task may be any task
            self.fail(error)
            return
        self._pump()

    def fail(self, error: BaseException) -> None:
        """End `run`, and thus the node, with this error. Records that are not written yet are lost."""
        if self._failure is None:
            self._failure = error
        self._wake.set()

    def _pump(self) -> None:
        """Perform the effects in order, up to the first effect that must wait for the disk."""
        if self._is_pumping or self._is_blocked:
            return
        core = self.core
        self._is_pumping = True
        try:
            while self._failure is None:
                self._effects.extend(core.effects())
                if not self._effects or isinstance(self._effects[0], ON_DISK):
                    break
                self._perform(self._effects.popleft())
        except Exception as error:  # noqa: BLE001 - `run` raises it, since this task may be any task
            self.fail(error)
        finally:
            self._is_pumping = False
        if self._effects or self._upkeep or self._may_write():
            self._wake.set()
        if core.next_deadline() < self._sleeping_until or self.decisions.may_write_ahead():
            self._earlier.set()
        self._notify_change()
        self.peers.own_copy.judge()

    def notify_observers(self) -> None:
        """Call all subscribers of `on_change`, because a value that they use may have changed."""
        for callback in self._observers:
            callback()

    def _time_election(self) -> None:
        """Measure Kafka's metric election-latency: the time from this node's first request for votes until it
        knows the leader of a new epoch.
        """
        if isinstance(self.core.role, Prospective | Candidate):
            if self._electing is None:
                self._electing = (self.clock.monotonic(), self.leader_epoch)
        elif self._electing is not None and self.leader_id is not None:
            (began, epoch), self._electing = self._electing, None
            if self.leader_epoch != epoch:
                self.elections += 1
                self.election_seconds += self.clock.monotonic() - began

    def _notify_change(self) -> None:
        self._time_election()
        # When the core resigns, its state is saved first. Until then this driver still acts as the leader. So
        # compare both the core's state and the driver's.
        state = (self.leader_id, self.leader_epoch, self.decisions.is_leading, self.decisions.epoch)
        if state == self._notified:
            return
        if state[:2] != self._notified[:2]:
            self.logger.info("quorum.leader", leader=state[0], epoch=state[1], me=self.settings.me.node_id)
        self._notified = state
        self.notify_observers()

    def perform_later(self, effect: SnapshotEffect) -> None:
        """Perform this effect after all present effects of the core."""
        if isinstance(effect, InstallSnapshot):
            self._effects.extend(self.core.effects())
            self._effects.append(effect)
        else:
            self._upkeep.append(effect)
        self._pump()

    def _perform(self, effect: Effect | SnapshotEffect) -> None:
        match effect:
            case Send():
                self.start_soon(self.peers.ask, effect.node_id, effect.request)
            case Answer():
                self._requests.answer(effect)
            case HighWatermarkAdvanced():
                self.decisions.advance(effect.high_watermark)
            case TookLeadership():
                self.decisions.took(effect.epoch)
            case LostLeadership():
                self.decisions.lost()
                self._requests.lost_leadership()
            case LoadSnapshot():
                self.start_soon(self.snapshots.load, effect)
            case _:
                raise AssertionError(f"the effect {effect} must wait for the disk")

    async def _work(self) -> bool:
        """Perform one effect that must wait for the disk, or one write. Returns False if there was nothing to
        do.
        """
        if self._effects or self._upkeep:
            effect = self._effects.popleft() if self._effects else self._upkeep.popleft()
            while isinstance(effect, SaveState) and self._effects and isinstance(self._effects[0], SaveState):
                reached("quorum.states_saved_as_one")
                # If one save follows another directly, only the newer state has to be saved.
                effect = self._effects.popleft()
            self._is_blocked = True
            await self._perform_on_disk(effect)
            self._is_blocked = False
            self._pump()
            return True
        if self._may_write():
            await self.decisions.write()
            return True
        return False

    def _may_write(self) -> bool:
        return not self._effects and self.decisions.may_write()

    def wake(self) -> None:
        """Wake `run`, because something may have to be done."""
        self._wake.set()
        if self.decisions.may_write_ahead():
            self._earlier.set()

    async def _perform_on_disk(self, effect: Effect | SnapshotEffect) -> None:
        match effect:
            case SaveState():
                await self.patiently(lambda: self._store.save(effect.state))
            case Truncate():
                self.logger.info("metadata.truncated", end_offset=effect.end_offset)
                async with self._log_turns:
                    await self.patiently(lambda: self.log.truncate_to(effect.end_offset))
            case InstallSnapshot() | DropBelow() | ExpireOld():
                async with self._log_turns:
                    await self.snapshots.perform(effect)
            case AppendFetched():
                await self._append_fetched(effect.batches)
            case _:
                raise AssertionError(f"the effect {effect} must not wait for the disk")

    async def _append_fetched(self, batches: Sequence[Batch]) -> None:
        await self.patiently(lambda: append_batches(self.log, batches))
        if self.log.log_end_offset != batches[-1].last_offset + 1:
            raise AssertionError(
                f"the metadata log ends at offset {self.log.log_end_offset} after an append of {batches[-1]}"
            )
        end_offset = await self.patiently(self.log.flush)
        self.core.flushed(end_offset, self.clock.monotonic())

    async def patiently(self, work: Callable[[], T]) -> T:
        """Run in a worker a call that waits for the disk. While the disk is full, repeat the call every second."""
        while True:
            try:
                result = await self.env.workers.run(work)
            except DiskRefused as error:
                if self._is_stopped:
                    raise
                self.report_no_room(error)
                await self.clock.sleep_until(self.clock.monotonic() + DISK_FULL_RETRY_SECONDS)
            else:
                self.report_room()
                return result

    def report_no_room(self, error: DiskRefused) -> None:
        """Report a write that the full disk refused, and that will be repeated.

        After the second refusal in a row, a leader with other voters resigns, so that another voter can take
        over.
        """
        self.decisions.disk_refused()
        if not self._logged_no_room:
            self._logged_no_room = True
            self.logger.error(
                "metadata.disk_full", error=str(error), waiting_bytes=self.decisions.waiting_bytes
            )
        elif self.decisions.epoch >= 0 and self._has_others():
            self.report(self.core.resign)
        self._earlier.set()

    def report_room(self) -> None:
        if self._logged_no_room:
            self._logged_no_room = False
            self.logger.info("metadata.disk_has_room")

    # -- requests ---------------------------------------------------------------------------------------------------

    @property
    def voters_written(self) -> tuple[int, int] | None:
        """The offset and epoch of the last voter set that this node has appended as leader; None if there is
        none.
        """
        return self._requests.voters_written

    def receive(self, request: Message, version: int, respond: Callable[[Message], None]) -> None:
        """Handle a request for the quorum (`QUORUM_APIS`). `respond` is called once, now or later."""
        self._requests.receive(request, version, respond)

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def reading(self) -> Turns:
        """A lock for readers of the log (`async with`). While a reader holds it, no part of the log is
        removed.
        """
        return self._log_turns

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics. Decisions per batch show how effective group commit is."""
        core = self._core
        return {
            "epoch": self.leader_epoch,
            "leader_id": -1 if self.leader_id is None else self.leader_id,
            "is_leading": int(self.decisions.is_leading) if core is not None else 0,
            "voters": 0 if core is None else len(core.voters.voters),
            "log_end_offset": 0 if core is None else self.decisions.log_end_offset,
            "high_watermark": self.decisions.high_watermark,
            **self.decisions.statistics(),
        }
