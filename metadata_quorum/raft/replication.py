"""Log replication: followers' fetches, where logs diverge or a snapshot is needed, promises, and the high
watermark (which records are committed). PURE.

The other modules of the core call these functions (see `core.py`). Followers fetch, so the leader needs no
queues of records to send. A Fetch that finds no new records is parked until there are some.
"""

from __future__ import annotations

from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft import election
from odradek.metadata_quorum.raft.core_state import CoreState
from odradek.metadata_quorum.raft.effects import Answer, AppendFetched, LoadSnapshot, Truncate
from odradek.metadata_quorum.raft.log_state import LogState
from odradek.metadata_quorum.raft.messages import Fetch, FetchAnswer
from odradek.metadata_quorum.raft.recoveries import parted
from odradek.metadata_quorum.raft.roles import Follower, Leader, Progress, Unattached
from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode

REPLICAS_MAX = 2000
"""The most replicas whose progress a leader remembers. For each of these replicas, the leader parks at most
one fetch.
"""
WAIT_MS_MAX = 30_000
"""The longest time, in milliseconds, for which a fetch is parked, even if the fetch allows more. A limit is
needed because the fetch's connection may have ended.
"""

# -- as a leader ----------------------------------------------------------------------------------------------------


def on_fetch(core: CoreState, request_id: int, request: Fetch) -> None:
    """Answer a Fetch with the next records, or park it. The order of checks is Kafka's."""
    role = core.role
    error = ErrorCode.NONE
    if request.epoch < core.epoch:
        error = ErrorCode.FENCED_LEADER_EPOCH
    elif request.epoch > core.epoch:
        error = ErrorCode.UNKNOWN_LEADER_EPOCH
    elif not isinstance(role, Leader):
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    if error is not ErrorCode.NONE or not isinstance(role, Leader):
        core.emit(Answer(request_id, FetchAnswer(core.epoch, core.leader_id, error=error)))
        return
    for each, (parked, _) in list(role.parked.items()):
        if parked.replica == request.replica:
            reached("raft.older_fetch_answered")
            # A replica that sends a new fetch no longer waits for the answer to its earlier one.
            del role.parked[each]
            core.emit(Answer(each, FetchAnswer(core.epoch, core.leader_id, core.high_watermark)))
    mismatch = _mismatch(core, request)
    if mismatch is not None:
        note_life(core, role, request.replica)
        core.emit(Answer(request_id, mismatch))
        return
    progress = _note_promise(core, role, request)
    if isinstance(core.role, Leader) and _has_news(core, progress, request):
        _answer(core, request_id, request, progress)
    elif isinstance(core.role, Leader):
        role.parked[request_id] = (request, core.now + min(request.wait_ms_max, WAIT_MS_MAX) / 1000)
    else:
        reached("raft.removed_itself_during_fetch")
        # This fetch has completed a majority for the voter set that excludes this leader. So the set is
        # committed, and the leader has resigned.
        core.emit(
            Answer(
                request_id,
                FetchAnswer(core.epoch, core.leader_id, error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
            )
        )


def _mismatch(core: CoreState, request: Fetch) -> FetchAnswer | None:
    """Return the answer to a replica whose log does not match this leader's log. It makes the replica load a
    snapshot, or truncate its log. Returns None if the two logs match.
    """
    log = core.log
    ours = OffsetAndEpoch(request.offset, request.last_epoch)
    snapshot = log.snapshot
    if snapshot is not None and ours != snapshot:
        behind = request.offset < log.start_offset
        other_past = request.offset == log.start_offset > 0 and request.last_epoch != log_epoch_at_start(log)
        if behind or other_past or request.last_epoch < _first_epoch(log, snapshot):
            reached("raft.follower_sent_to_snapshot")
            return FetchAnswer(core.epoch, core.leader_id, core.high_watermark, snapshot=snapshot)
    agreed = log.end_offset_for_epoch(request.last_epoch)
    if agreed.epoch != request.last_epoch or agreed.offset < request.offset:
        reached("raft.follower_sent_back")
        return FetchAnswer(core.epoch, core.leader_id, core.high_watermark, diverging=agreed)
    return None


def log_epoch_at_start(log: LogState) -> int:
    """Return the epoch of the record before the log's start; -1 without a snapshot."""
    return -1 if log.snapshot is None else log.snapshot.epoch


def _first_epoch(log: LogState, snapshot: OffsetAndEpoch) -> int:
    return log.epochs[0][0] if log.epochs and log.epochs[0][1] < snapshot.offset else snapshot.epoch


def note_life(core: CoreState, role: Leader, replica: ReplicaKey) -> None:
    """Record that a replica is alive, although its log does not match this leader's log yet.

    A voter that loads a snapshot sends nothing else. A leader that did not count it would resign, and the voter would
    have to load the next leader's snapshot from the beginning (thesis 6.2).
    """
    if replica in role.progress or core.voters.has(replica):
        progress = _progress_of(core, role, replica)
        progress.last_fetch = core.now
        # It has not caught up with the log as it is now.
        progress.end_offset_at_last_fetch = -1


def _note_promise(core: CoreState, role: Leader, request: Fetch) -> Progress:
    """Record a replica's promise: its Fetch from `offset` means that all earlier records are on its disk.

    Returns its progress.
    """
    progress = _progress_of(core, role, request.replica)
    if request.offset >= core.log.end_offset:
        progress.last_caught_up = core.now
    elif request.offset >= progress.end_offset_at_last_fetch >= 0:
        progress.last_caught_up = progress.last_fetch
    progress.last_fetch = core.now
    progress.end_offset_at_last_fetch = core.log.end_offset
    progress.offset = request.offset
    if request.high_watermark is not None:
        progress.high_watermark_sent = request.high_watermark
    count_promises(core)
    return progress


def _progress_of(core: CoreState, role: Leader, replica: ReplicaKey) -> Progress:
    """Return a replica's progress. A new replica begins without any."""
    progress = role.progress.get(replica)
    if progress is None:
        if len(role.progress) >= REPLICAS_MAX:
            _forget_one(core, role)
        progress = role.progress[replica] = Progress(replica)
    return progress


def _forget_one(core: CoreState, role: Leader) -> None:
    """Forget the observer that has been silent for the longest time. Otherwise a client with many names could
    fill the memory.
    """
    observers = [each for each in role.progress.values() if not core.voters.has(each.key)]
    if observers:
        reached("raft.observer_forgotten")
        silent = min(observers, key=lambda each: (each.last_fetch, each.key))
        del role.progress[silent.key]
        for request_id, (parked, _) in list(role.parked.items()):
            if parked.replica == silent.key:
                del role.parked[request_id]
                answer = FetchAnswer(core.epoch, core.leader_id, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
                core.emit(Answer(request_id, answer))


def count_promises(core: CoreState) -> None:
    """Advance the high watermark to the largest offset below which a majority of the voters has all records
    on disk.

    Raft 5.4.2: "only log entries from the leader's current term are committed by counting replicas".
    """
    role = core.role
    assert isinstance(role, Leader)
    promised = []
    for voter in core.voters.voters:
        if voter.key.matches(core.me):
            promised.append(core.log.flushed_offset)
        else:
            progress = role.progress_of(voter.key)
            promised.append(-1 if progress is None else progress.offset)
    promised.sort(reverse=True)
    offset = promised[core.voters.majority - 1]
    if core.high_watermark < offset <= role.epoch_start:
        reached("raft.earlier_epoch_not_counted")
    if offset > role.epoch_start and offset > core.high_watermark:
        core.advance_high_watermark(offset)
        if core.log.voters_offset < offset and not core.is_voter:
            reached("raft.removed_leader_stepped_down")
            # Thesis 4.2.2: a leader that is not in the new voter set steps down once this set is committed.
            election.resign(core)
        else:
            answer_parked(core)


def _has_news(core: CoreState, progress: Progress, request: Fetch) -> bool:
    if core.log.end_offset > request.offset:
        return True
    # Before a leader has committed a record of its epoch, it sends no high watermark. An answer without
    # records would then be useless to a follower with a lower high watermark, which would fetch again and
    # again.
    return core.has_committed_in_epoch and core.high_watermark > progress.high_watermark_sent


def _answer(core: CoreState, request_id: int, request: Fetch, progress: Progress) -> None:
    progress.high_watermark_sent = core.high_watermark
    read_offset = request.offset if core.log.end_offset > request.offset else None
    core.emit(Answer(request_id, FetchAnswer(core.epoch, core.leader_id, core.high_watermark), read_offset))


def answer_parked(core: CoreState) -> None:
    """Answer those parked fetches for which there are new records or a new high watermark."""
    role = core.role
    assert isinstance(role, Leader)
    for request_id, (request, _) in list(role.parked.items()):
        progress = role.progress[request.replica]
        if _has_news(core, progress, request):
            del role.parked[request_id]
            _answer(core, request_id, request, progress)


# -- time -----------------------------------------------------------------------------------------------------------


def deadline(core: CoreState) -> float:
    if isinstance(core.role, Leader) and core.role.parked:
        return min(until for _, until in core.role.parked.values())
    return float("inf")


def on_time(core: CoreState) -> None:
    """Answer parked fetches whose time limit has passed, without records."""
    role = core.role
    if isinstance(role, Leader):
        for request_id, (request, until) in list(role.parked.items()):
            if until <= core.now:
                del role.parked[request_id]
                _answer(core, request_id, request, role.progress[request.replica])


# -- as a follower --------------------------------------------------------------------------------------------------


def ask(core: CoreState) -> None:
    """Send a Fetch, once all fetched records are on the disk. A replica that abstains sends no Fetch, because
    a Fetch promises that all earlier records are durable.
    """
    role = core.role
    if core.abstains or core.is_asking(Fetch) or core.log.flushed_offset < core.log.end_offset:
        return
    target: int | None = None
    if isinstance(role, Follower) and role.snapshot is None:
        target = role.leader_id
    elif isinstance(role, Unattached):
        # A leader that cannot be reached may have lost its leadership. Nobody notifies observers of a new
        # leader, so they must look for it themselves.
        known = role.leader_id is not None and core.can_ask(role.leader_id, Fetch)
        target = role.leader_id if known else core.someone_to_ask()
    if target is None or not core.can_ask(target, Fetch):
        return
    wait_ms = int(core.config.fetch_wait_seconds_max * 1000)
    end = core.log.end
    core.ask(target, Fetch(core.epoch, core.me, end.offset, end.epoch, wait_ms, core.high_watermark))


def on_fetch_answer(core: CoreState, node_id: int, answer: FetchAnswer) -> None:
    """Handle an answer to a Fetch, if it comes from the leader of the present epoch."""
    role = core.role
    if not isinstance(role, Follower) or role.leader_id != node_id:
        reached("raft.fetch_of_other_leader")
        return
    if answer.error is ErrorCode.UNKNOWN_LEADER_EPOCH and answer.epoch < role.epoch:
        reached("raft.leader_without_its_epoch")
        # The leader does not know its own epoch, so it has restarted with an empty disk. It cannot resign. So
        # act as if the connection to it were broken.
        election.doubt_leader(core, node_id)
        return
    if answer.error is not ErrorCode.NONE or answer.epoch != role.epoch:
        reached("raft.fetch_refused")
        return
    role.fetch_deadline = core.now + core.config.fetch_timeout_seconds
    core.heard_leader = node_id, core.now
    role.has_fetched = True
    if answer.snapshot is not None:
        reached("raft.snapshot_wanted")
        role.snapshot = answer.snapshot
        core.emit(LoadSnapshot(node_id, answer.snapshot))
        return
    if answer.diverging is not None:
        reached("raft.log_cut_at_divergence")
        _truncate(core, answer.diverging)
        return
    for batch in answer.batches:
        core.log.append(batch)
    if answer.batches:
        core.emit(AppendFetched(answer.batches))
    core.advance_high_watermark(min(answer.high_watermark, core.log.end_offset))


def _truncate(core: CoreState, diverging: OffsetAndEpoch) -> None:
    """Truncate the log to the end of the common history (KIP-101).

    Raises `LogLeftBehind` if this end is below the high watermark.
    """
    ours = core.log.end_offset_for_epoch(diverging.epoch)
    end_offset = min(ours.offset, diverging.offset) if ours.epoch == diverging.epoch else ours.offset
    if end_offset < core.high_watermark:
        raise parted(core.log, core.epoch, end_offset, core.high_watermark)
    core.log.truncate(end_offset)
    core.emit(Truncate(end_offset))
