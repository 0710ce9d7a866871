"""The exactly-once protocol of tasks in every order of crashes, retries and late writers, with a model of a log."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from odradek.spark.delivery.task_protocol import Marker, ProgressError, RowSummary, Step, TaskProtocol, judge

SUMMARY = RowSummary(3, 17)


@attrs.frozen
class Attempt:
    """One attempt at a task: its step, the epoch that it got, the log end that it read, and its transaction."""

    task: int
    step: Step = Step.FENCE
    epoch: int = -1
    end: int = -1
    transaction: int = -1


@attrs.frozen
class Transaction:
    """A transaction of a task. `outcome` is None while it is open."""

    task: int
    epoch: int
    outcome: bool | None = None


@attrs.frozen
class World:
    """The state of all parts of a search.

    `attempts` are running. `left` has, for each task, how many more attempts may start. `log` has the markers as
    numbers of their transactions. `told` has the tasks that have reported to Spark.
    """

    epochs: tuple[int, ...]
    attempts: tuple[Attempt, ...]
    left: tuple[int, ...]
    log: tuple[int, ...] = ()
    transactions: tuple[Transaction, ...] = ()
    told: frozenset[int] = frozenset()

    def marked(self, task: int, end: int) -> bool:
        """True if there is a committed marker of the task below `end`."""
        return any(
            self.transactions[each].task == task and self.transactions[each].outcome
            for each in self.log[:end]
        )

    def written(self, task: int) -> int:
        """Return how many committed copies of a task's rows there are."""
        return sum(each.task == task and each.outcome is True for each in self.transactions)

    def last_stable_offset(self) -> int:
        """Return the offset of the first marker whose transaction is open, or the end of the log."""
        for offset, each in enumerate(self.log):
            if self.transactions[each].outcome is None:
                return offset
        return len(self.log)


@attrs.frozen
class Rules:
    """The rules of the protocol. A test can switch off each one, to see whether the search finds a fault."""

    fences: bool = True
    end_is_stable_offset: bool = False
    end_before_fence: bool = False
    marker_in_transaction: bool = True


def _open_is_ended(world: World, task: int, outcome: bool = False) -> tuple[Transaction, ...]:
    return tuple(
        attrs.evolve(each, outcome=outcome) if each.task == task and each.outcome is None else each
        for each in world.transactions
    )


def _end(world: World, rules: Rules) -> int:
    return world.last_stable_offset() if rules.end_is_stable_offset else len(world.log)


def _stepped(world: World, place: int, rules: Rules) -> Iterator[World]:
    """Yield the states after an attempt's next step. An attempt that is refused is removed."""
    attempt = world.attempts[place]
    machine = TaskProtocol("q", attempt.task, 0, step=attempt.step)
    others = world.attempts[:place] + world.attempts[place + 1 :]

    def go_on(after: World, changed: Attempt | None) -> World:
        if changed is None:
            return attrs.evolve(after, attempts=others)
        return attrs.evolve(after, attempts=(*others[:place], changed, *others[place:]))

    fenced = attempt.epoch != world.epochs[attempt.task]
    match attempt.step:
        case Step.FENCE:
            machine.fenced()
            if rules.fences:
                epochs = list(world.epochs)
                epochs[attempt.task] += 1
                world = attrs.evolve(
                    world, epochs=tuple(epochs), transactions=_open_is_ended(world, attempt.task)
                )
            yield go_on(world, attrs.evolve(attempt, step=machine.step, epoch=world.epochs[attempt.task]))
        case Step.TAKE_END:
            machine.end_taken()
            end = attempt.end if rules.end_before_fence else _end(world, rules)
            yield go_on(world, attrs.evolve(attempt, step=machine.step, end=end))
        case Step.READ_MARKER:
            found = world.marked(attempt.task, attempt.end)
            machine.marker_read(Marker(0, SUMMARY) if found else None)
            yield go_on(world, attrs.evolve(attempt, step=machine.step))
        case Step.COMPARE:
            machine.marker = Marker(0, SUMMARY)
            machine.compare(SUMMARY)
            yield go_on(world, attrs.evolve(attempt, step=machine.step))
        case Step.WRITE:
            if fenced:
                yield go_on(world, None)
                return
            machine.written()
            number = len(world.transactions)
            opened = Transaction(attempt.task, attempt.epoch)
            log = (*world.log, number) if rules.marker_in_transaction else world.log
            world = attrs.evolve(world, transactions=(*world.transactions, opened), log=log)
            yield go_on(world, attrs.evolve(attempt, step=machine.step, transaction=number))
        case Step.COMMIT:
            if fenced or world.transactions[attempt.transaction].outcome is not None:
                yield go_on(world, None)
                return
            machine.committed()
            transactions = list(world.transactions)
            transactions[attempt.transaction] = attrs.evolve(transactions[attempt.transaction], outcome=True)
            world = attrs.evolve(world, transactions=tuple(transactions))
            yield go_on(world, attrs.evolve(attempt, step=machine.step))
            # The response is lost: the attempt fails, but its transaction is committed.
            yield go_on(world, None)
        case Step.REPORT:
            yield go_on(attrs.evolve(world, told=world.told | {attempt.task}), None)


def _following(world: World, rules: Rules) -> Iterator[World]:
    """Yield all possible next states: after a step, a crash, a timeout, or the start of another attempt."""
    for place in range(len(world.attempts)):
        yield from _stepped(world, place, rules)
        yield attrs.evolve(world, attempts=world.attempts[:place] + world.attempts[place + 1 :])
    for task, left in enumerate(world.left):
        if left:
            attempt = Attempt(task, end=_end(world, rules) if rules.end_before_fence else -1)
            fewer = (*world.left[:task], left - 1, *world.left[task + 1 :])
            yield attrs.evolve(world, left=fewer, attempts=(*world.attempts, attempt))
        if any(each.task == task and each.outcome is None for each in world.transactions):
            epochs = (*world.epochs[:task], world.epochs[task] + 1, *world.epochs[task + 1 :])
            yield attrs.evolve(world, epochs=epochs, transactions=_open_is_ended(world, task))


def _order(attempt: Attempt) -> tuple[int, str, int, int, int]:
    return attempt.task, attempt.step.value, attempt.epoch, attempt.end, attempt.transaction


def _canonical(world: World) -> World:
    """Return the same state with its attempts sorted, because their order does not matter."""
    return attrs.evolve(world, attempts=tuple(sorted(world.attempts, key=_order)))


def fault(rules: Rules, attempts: tuple[int, ...]) -> tuple[str | None, int]:
    """Search all states; return the first fault found, and the number of states seen."""
    first = World((0,) * len(attempts), (), attempts)
    seen, waiting = {first}, [first]
    while waiting:
        world = waiting.pop()
        for task in range(len(attempts)):
            if world.written(task) > 1:
                return f"task {task} is doubled", len(seen)
            if task in world.told and not world.written(task):
                return f"task {task} is lost", len(seen)
        for after in map(_canonical, _following(world, rules)):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return None, len(seen)


def test_no_order_of_events_loses_or_doubles_rows() -> None:
    """In every order of events, with two attempts beside another task or three alone, rows are written at most once.
    They are there if the task reported to Spark."""
    assert [fault(Rules(), attempts)[0] for attempts in ((2, 1), (3,))] == [None, None]


@pytest.mark.parametrize(
    ("rules", "attempts"),
    [
        (Rules(fences=False), (2,)),
        (Rules(end_is_stable_offset=True), (2, 1)),
        (Rules(end_before_fence=True), (2,)),
        (Rules(marker_in_transaction=False), (2,)),
    ],
    ids=["without fencing", "marker up to the last stable offset", "end taken before fencing", "no marker"],
)
def test_each_rule_is_needed(rules: Rules, attempts: tuple[int, ...]) -> None:
    """If one rule is switched off, the search finds duplicated rows."""
    assert fault(rules, attempts)[0] == "task 0 is doubled"


def test_the_stable_offset_is_enough_for_a_task_alone() -> None:
    """Only another task's open transaction can hide a marker. A query with one task may read up to the last stable
    offset."""
    assert fault(Rules(end_is_stable_offset=True), (2,))[0] is None


@pytest.mark.parametrize(
    ("task", "last", "batch", "writes"),
    [(0, None, 0, True), (0, 4, 5, True), (0, 5, 5, False), (3, None, 9, True), (3, 4, 9, True)],
)
def test_batches_that_follow_their_marker(task: int, last: int | None, batch: int, writes: bool) -> None:
    """If the batch already has a marker, its rows are only compared; otherwise they are written. A task other than task
    0 may skip batches."""
    marker = None if last is None else Marker(last, SUMMARY)
    assert judge(TaskProtocol("query q", task, batch), marker, newest=batch - 1) is writes


@pytest.mark.parametrize("adopt", [False, True])
def test_a_later_task_is_refused_where_the_first_would_be(adopt: bool) -> None:
    """If no task has a marker of the previous batch, as when decisionsTopic is wrong, task 3 is refused, too. An
    uncommitted marker of that batch suffices."""
    attempt = TaskProtocol("query q", 3, 5, adopt=adopt)
    for last, newest, begun in ((None, -1, -1), (None, 3, 3), (3, 3, -1)):
        marker = None if last is None else Marker(last, SUMMARY)
        if adopt:
            assert judge(attempt, marker, newest, begun)
            continue
        with pytest.raises(ProgressError, match="set the option decisionsTopic to that topic"):
            judge(attempt, marker, newest, begun)
    assert judge(attempt, None, newest=4)
    assert judge(attempt, None, newest=3, begun=4)


@pytest.mark.parametrize(
    ("task", "last", "batch", "sentence"),
    [
        (0, 7, 5, "the checkpoint is older than the topic"),
        (3, 7, 5, "the checkpoint is older than the topic"),
        (0, 3, 5, "the topic has batch 3 of query q, and batch 5 is next"),
        (0, None, 5, "the topic has no progress of query q, and batch 5 is next"),
    ],
)
def test_batches_that_contradict_their_marker(task: int, last: int | None, batch: int, sentence: str) -> None:
    """A batch that does not follow its marker is refused with one sentence. Gaps are allowed for a job's versions and
    for an adopted checkpoint."""
    marker = None if last is None else Marker(last, SUMMARY)
    with pytest.raises(ProgressError, match=sentence):
        judge(TaskProtocol("query q", task, batch), marker)
    if last is None or last < batch:
        assert judge(TaskProtocol("query q", task, batch, consecutive=False), marker)
        assert judge(TaskProtocol("query q", task, batch, adopt=True), marker)


@pytest.mark.parametrize("last", [None, 4, 5])
@pytest.mark.parametrize("consecutive", [True, False])
def test_no_task_writes_a_batch_that_the_query_has_passed(last: int | None, consecutive: bool) -> None:
    """If another task has committed a later batch, a task's attempt at an earlier one is refused, even without a marker
    of its own."""
    marker = None if last is None else Marker(last, SUMMARY)
    attempt = TaskProtocol("query q", 3, 5, consecutive=consecutive, adopt=True)
    with pytest.raises(
        ProgressError, match="the topic already has batch 6 of query q, so batch 5 cannot be written"
    ):
        judge(attempt, marker, newest=6)
    assert judge(attempt, marker, newest=5) is (last != 5)


def test_other_rows_of_a_committed_batch() -> None:
    """If rows differ in number or content from the committed ones, the error says what to do."""
    for found, words in ((RowSummary(4, 17), "this attempt has 4"), (RowSummary(3, 18), "as many rows")):
        attempt = TaskProtocol("query q", 0, 0, step=Step.READ_MARKER)
        attempt.marker_read(Marker(0, SUMMARY))
        with pytest.raises(ProgressError, match=words):
            attempt.compare(found)
        assert attempt.step is Step.COMPARE


def test_steps_have_one_order() -> None:
    """A step out of order raises `AssertionError`."""
    attempt = TaskProtocol("query q", 0, 0)
    with pytest.raises(AssertionError):
        attempt.committed()
