"""Incremental fetch sessions, by the rules of KIP-227."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.data_plane.fetch_sessions import (
    EPOCH_MAX,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    SESSIONS_PER_REPLICA_MAX,
    UNKNOWN_MAX,
    FetchedPartition,
    FetchPlan,
    FetchSessions,
    FollowerCursor,
    move_to_end,
    replica_of,
)
from odradek.serving.steps import run_through
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState

EVICTION_MS = 1000
ID = bytes(range(16))


class Cache:
    """A cache of sessions with a short interface. All partitions belong to topic `t`."""

    in_pieces = False
    """True if a request's partitions are collected in pieces first, as in requests that name thousands."""

    def __init__(
        self,
        slots_max: int = 2,
        *,
        known_max: int = 1 << 30,
        followers: tuple[int, ...] = tuple(range(100)),
    ) -> None:
        """Make the cache. Partitions from `known_max` on do not exist, and only the replicas `followers` exist."""
        self.sessions = FetchSessions(
            slots_max,
            EVICTION_MS,
            Random(1),
            is_known=lambda key: key[1] < known_max,
            is_follower=lambda request, by_id: replica_of(request) in followers,
        )

    def ask(
        self,
        epoch: int,
        fetch: dict[int, int] | None = None,
        *,
        session_id: int = NO_SESSION,
        forget: tuple[int, ...] = (),
        by_id: bool = False,
        now_ms: int = 0,
        replica: ReplicaState | None = None,
    ) -> FetchPlan:
        """Send one request that names partitions with their fetch offsets."""
        name, topic_id = ("", ID) if by_id else ("t", bytes(16))
        asked = [FetchPartition(index, fetch_offset=offset) for index, offset in (fetch or {}).items()]
        request = FetchRequest(session_id=session_id, session_epoch=epoch)
        if replica is not None:
            request.replica_state = replica
        request.topics = [FetchTopic(name, topic_id, asked)]
        request.forgotten_topics_data = [ForgottenTopic(name, topic_id, list(forget))]
        named = run_through(self.sessions.name(request, by_id)) if self.in_pieces else None
        return self.sessions.plan(request, by_id, now_ms, named)

    def open(self, size: int = 1, *, now_ms: int = 0, by_id: bool = False) -> int:
        """Ask for a new session. Return its id, or 0 if the cache grants none."""
        plan = self.ask(INITIAL_EPOCH, dict.fromkeys(range(size), 0), now_ms=now_ms, by_id=by_id)
        assert plan.error == ErrorCode.NONE
        return plan.session_id

    def holds(self, session_id: int) -> bool:
        """Return True if the cache has the session. Asking does not change it."""
        return self.ask(EPOCH_MAX, session_id=session_id).error != ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.fixture(autouse=True, params=[False, True], ids=["at once", "in pieces"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "in_pieces", request.param)


def offsets(plan: FetchPlan) -> dict[int, int]:
    """Return the fetch offset of each partition, in the order of the plan."""
    return {fetched.key[1]: fetched.fetch_offset for fetched in plan.partitions}


def test_a_session_from_open_to_close() -> None:
    """A client opens a session (epoch 0), names only changes (1, 2, ...), then fetches without a session (-1)."""
    cache = Cache()
    full = cache.ask(INITIAL_EPOCH, {0: 10, 1: 20, 2: 30})
    sid = full.session_id
    assert sid > 0
    assert not full.incremental
    steps: list[tuple[dict[int, int], tuple[int, ...], dict[int, int]]] = [
        ({}, (), {0: 10, 1: 20, 2: 30}),
        ({1: 21}, (), {0: 10, 1: 21, 2: 30}),
        ({3: 40}, (0,), {1: 21, 2: 30, 3: 40}),
        ({0: 11}, (7,), {1: 21, 2: 30, 3: 40, 0: 11}),
        (
            {2: 31},
            (2,),
            {1: 21, 3: 40, 0: 11},
        ),  # Both lists name partition 2: as Kafka does, we update it and then forget it.
    ]
    for epoch, (fetch, forget, expected) in enumerate(steps, start=1):
        plan = cache.ask(epoch, fetch, session_id=sid, forget=forget)
        assert (plan.error, plan.session_id, plan.incremental) == (ErrorCode.NONE, sid, True)
        assert list(offsets(plan).items()) == list(expected.items())
    closed = cache.ask(FINAL_EPOCH, {5: 50}, session_id=sid)
    assert (closed.error, closed.session_id, closed.incremental) == (ErrorCode.NONE, NO_SESSION, False)
    assert offsets(closed) == {5: 50}
    assert not cache.holds(sid)


@pytest.mark.parametrize(
    ("epoch", "is_known", "by_id", "code"),
    [
        (1, False, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (2, True, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (-2, True, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (2, True, True, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (1, True, True, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_refusals(epoch: int, is_known: bool, by_id: bool, code: ErrorCode) -> None:
    """An unknown id, a wrong epoch, and topic ids in a session of names (KIP-516) are refused and change nothing."""
    cache = Cache()
    sid = cache.open()
    plan = cache.ask(epoch, {0: 99}, session_id=sid if is_known else sid ^ 1, by_id=by_id)
    assert (plan.error, plan.session_id, plan.partitions) == (code, NO_SESSION, ())
    assert offsets(cache.ask(1, session_id=sid)) == {0: 0}


def test_names_in_a_session_of_topic_ids() -> None:
    """Topic names in a session of topic ids get FETCH_SESSION_TOPIC_ID_ERROR, too."""
    cache = Cache()
    sid = cache.open(by_id=True)
    assert cache.ask(1, session_id=sid).error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert cache.ask(1, session_id=sid, by_id=True).partitions[0].key == (ID, 0)


def test_a_repeated_request_is_refused() -> None:
    """A request that is sent twice is refused the second time. So a lost response is noticed."""
    cache = Cache()
    sid = cache.open()
    assert cache.ask(1, session_id=sid).error == ErrorCode.NONE
    assert cache.ask(1, session_id=sid).error == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_epochs_wrap_to_one() -> None:
    """After the highest epoch the next one is 1, because 0 would ask for a new session."""
    cache = Cache()
    full = cache.ask(INITIAL_EPOCH, {0: 0})
    assert full.session is not None
    full.session.epoch = EPOCH_MAX
    for epoch in (EPOCH_MAX, 1, 2):
        assert cache.ask(epoch, session_id=full.session_id).error == ErrorCode.NONE


def test_a_session_without_partitions_ends() -> None:
    """A session ends with its last partition, as in Kafka: the answer has no session id, and the slot is free."""
    cache = Cache()
    sid = cache.open(2)
    plan = cache.ask(1, session_id=sid, forget=(0, 1))
    assert (plan.error, plan.session_id, plan.partitions) == (ErrorCode.NONE, NO_SESSION, ())
    assert not cache.holds(sid)


def test_a_full_request_replaces_the_session_that_it_names() -> None:
    """A full request that names a session replaces it, so that one client never has two slots."""
    cache = Cache(slots_max=1)
    sid = cache.open()
    again = cache.ask(INITIAL_EPOCH, {4: 0}, session_id=sid)
    assert again.session_id not in (NO_SESSION, sid)
    assert not cache.holds(sid)


# Each row: what happens; size, creation and last use of two sessions; size of the newcomer; now; which one is evicted.
EVICTIONS = [
    ("all are young and in use", (1, 0, 0), (1, 0, 0), 9, 500, None),
    ("the one that is idle for longest goes, whatever its size", (9, 0, 10), (1, 0, 0), 1, 1001, 1),
    ("idle for exactly eviction_ms is not stale", (1, 0, 0), (1, 0, 0), 1, 1000, None),
    ("a smaller one that is past its first minutes", (2, 0, 900), (3, 0, 900), 4, 1500, 0),
    ("... the smallest of those", (3, 0, 900), (2, 0, 900), 4, 1500, 1),
    ("an equal one stays", (2, 0, 900), (2, 0, 900), 2, 1500, None),
    ("a smaller one that is young is passed over", (1, 800, 900), (2, 0, 900), 4, 1500, 1),
]


@pytest.mark.parametrize(
    ("first", "second", "size", "now_ms", "evicted"),
    [row[1:] for row in EVICTIONS],
    ids=[r[0] for r in EVICTIONS],
)
def test_evictions(
    first: tuple[int, int, int], second: tuple[int, int, int], size: int, now_ms: int, evicted: int | None
) -> None:
    """KIP-227, "Fetch Session Caching": a full cache evicts an idle session first, then a smaller one of some age."""
    cache = Cache()
    ids = []
    for partitions, created_ms, used_ms in (first, second):
        sid = cache.open(partitions, now_ms=created_ms)
        cache.ask(1, session_id=sid, now_ms=used_ms)
        ids.append(sid)
    newcomer = cache.open(size, now_ms=now_ms)
    assert bool(newcomer) == (evicted is not None)
    assert [cache.holds(sid) for sid in ids] == [number != evicted for number in range(2)]
    assert cache.sessions.statistics()["evictions"] == (evicted is not None)


def test_without_slots_there_are_no_sessions() -> None:
    """With `max.incremental.fetch.session.cache.slots=0` there are no sessions, and every fetch is a full one."""
    plan = Cache(slots_max=0).ask(INITIAL_EPOCH, {0: 5})
    assert (plan.session_id, offsets(plan)) == (NO_SESSION, {0: 5})


def test_served_partitions_move_to_the_end() -> None:
    """Partitions that were served move to the end, so that the others come first next time. Forgotten ones stay
    forgotten."""
    cache = Cache()
    full = cache.ask(INITIAL_EPOCH, {0: 0, 1: 0, 2: 0, 3: 0})
    assert full.session is not None
    move_to_end(full.session, full.partitions[:2])
    assert list(offsets(cache.ask(1, session_id=full.session_id))) == [2, 3, 0, 1]
    cache.ask(2, session_id=full.session_id, forget=(0, 1))
    fresh = cache.ask(3, {1: 7}, session_id=full.session_id)
    move_to_end(full.session, full.partitions[:2])
    assert offsets(cache.ask(4, session_id=full.session_id)) == offsets(fresh) == {2: 0, 3: 0, 1: 7}


def test_what_a_follower_has_forgotten_is_not_looked_at() -> None:
    """A partition that a follower has forgotten is not read, even if an append wakes its old cursor."""
    cache = Cache()
    replica = ReplicaState(2, 7)
    session = cache.ask(INITIAL_EPOCH, {0: 5, 1: 5}, by_id=True, replica=replica).session
    assert session is not None
    forgotten = session.partitions[ID, 0]
    assert isinstance(forgotten, FollowerCursor)
    for cursor in session.to_read():
        assert isinstance(cursor, FollowerCursor)
        cursor.settle()
    cache.ask(1, session_id=session.session_id, forget=(0,), by_id=True, replica=replica)
    forgotten.mark_dirty(wakes=True)
    assert session.to_read() == ()
    assert forgotten.is_stirred, "else its next append would take it for one that has everything"
    cache.ask(2, {0: 6}, session_id=session.session_id, by_id=True, replica=replica)
    assert [cursor.fetch_offset for cursor in session.to_read()] == [6]


def test_a_partition_new_to_a_session_has_been_told_nothing() -> None:
    """A partition that is new in a session is in the next answer, since no high watermark was sent for it yet."""
    fetched = FetchedPartition(("t", 0))
    assert (fetched.sent_high_watermark, fetched.sent_log_start_offset) == (-1, -1)


@given(
    st.lists(
        st.tuples(st.dictionaries(st.integers(0, 4), st.integers(0, 9)), st.sets(st.integers(0, 4))),
        max_size=8,
    )
)
def test_a_session_is_a_dict_of_partitions(steps: list[tuple[dict[int, int], set[int]]]) -> None:
    """A session fetches the partitions that a plain dict would hold after the same updates and removals."""
    cache = Cache()
    model = {9: 0}
    sid = cache.ask(INITIAL_EPOCH, model).session_id
    for epoch, (fetch, forget) in enumerate(steps, start=1):
        model = {index: at for index, at in {**model, **fetch}.items() if index not in forget}
        assert offsets(cache.ask(epoch, fetch, session_id=sid, forget=tuple(sorted(forget)))) == model


def test_partitions_that_are_not_here_are_bounded_over_all_sessions() -> None:
    """All sessions together hold a bounded number of unknown partitions. Beyond it a client gets no session."""
    cache = Cache(1000, known_max=0)
    half = UNKNOWN_MAX // 2
    first = cache.open(half)
    assert first
    assert cache.open(half)
    assert not cache.open(1)
    assert Cache(known_max=1).open(1)
    assert cache.sessions.statistics()["unknown_partitions"] == UNKNOWN_MAX
    grown = cache.ask(1, {half: 0}, session_id=first)
    assert (grown.error, grown.session_id, grown.incremental) == (ErrorCode.NONE, NO_SESSION, False)
    assert len(grown.partitions) == half + 1
    assert not cache.holds(first)
    assert cache.sessions.statistics()["unknown_partitions"] == half
    assert cache.open(1)


def test_what_is_forgotten_makes_room_for_other_unknown_partitions() -> None:
    """When a session forgets unknown partitions, clients may name other unknown ones in their place."""
    cache = Cache(1000, known_max=0)
    session_id = cache.open(UNKNOWN_MAX)
    assert not cache.open(1)
    cache.ask(1, session_id=session_id, forget=(0, 1))
    assert cache.open(2)
    assert not cache.open(1)


def test_whoever_only_says_that_it_is_a_replica_gets_no_session() -> None:
    """A client that falsely claims to be a replica gets no session, which would evict one of a consumer."""
    cache = Cache(1, followers=(2,))
    held = cache.open()
    liar = cache.ask(INITIAL_EPOCH, {0: 0}, replica=ReplicaState(9, 1))
    assert (liar.error, liar.session_id) == (ErrorCode.NONE, NO_SESSION)
    assert cache.holds(held)
    assert cache.ask(INITIAL_EPOCH, {0: 0}, replica=ReplicaState(2, 1)).session_id


def test_one_replica_pushes_out_a_few_sessions_at_most() -> None:
    """A replica has a few sessions at most. Beyond that its own oldest session makes room for the next one."""
    cache = Cache(100)
    consumers = [cache.open() for _ in range(100 - SESSIONS_PER_REPLICA_MAX)]
    mine = [
        cache.ask(INITIAL_EPOCH, {0: 0}, replica=ReplicaState(2, 1), now_ms=now_ms).session_id
        for now_ms in range(3 * SESSIONS_PER_REPLICA_MAX)
    ]
    assert all(cache.holds(each) for each in consumers)
    assert [cache.holds(each) for each in mine].count(True) == SESSIONS_PER_REPLICA_MAX
    assert cache.holds(mine[-1])
