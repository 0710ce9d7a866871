"""A model of two-phase delivery: coordinators, drivers and attempts, in every order of events. For `test_two_phase`.

A query of two batches runs on a model of the transaction coordinators and of the decisions topic. Drivers are started
while older ones live. Attempts at a task run concurrently, and may outlive their driver. A dead process simply takes no
further step, so every state also stands for the deaths in it. The state machines of `odradek.spark.delivery.two_phase`
choose each next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import attrs

from odradek.spark.delivery.task_protocol import Marker, ProgressError, RowSummary
from odradek.spark.delivery.two_phase import (
    AttemptProtocol,
    AttemptStep,
    Decision,
    DriverProtocol,
    DriverStep,
    Prepared,
    last_of,
)

__all__ = ["Rules", "Sizes", "fault"]

_ROWS = RowSummary(1, 1)
_EMPTY, _OPEN, _COMMITTED, _ABORTED = "empty", "open", "committed", "aborted"


@attrs.frozen
class Rules:
    """The rules of the protocol. A test can switch off each one, to see whether the search finds a fault."""

    claim_keeps_prepared: bool = True
    looks_again: bool = True
    fences_driver: bool = True
    reads_after_fence: bool = True
    decides_first: bool = True
    rolls_forward: bool = True
    sweeps_incomplete_only: bool = True
    proves_before_sweep: bool = True
    sweeps_by_identity: bool = True
    sweeps_claimed: bool = True
    abort_respects_decision: bool = True
    abort_drops_only_own: bool = True
    asks_each_task: bool = True
    """A marker of any task, not only of task 0, shows that a batch has begun with delivery=exactly-once."""


@attrs.frozen
class Sizes:
    """The bounds of a search."""

    batches: int = 2
    tasks: int = 1
    drivers: int = 2
    attempts: int = 1
    """Attempts at a task, for each driver and batch."""
    slots: int = 2
    aborts: bool = True
    """True if batches may fail."""
    first_ends: bool = False
    """True if the first driver ends after its first batch, like a driver that has fallen behind."""
    begun: tuple[int, ...] = ()
    """The tasks that have already committed batch 0 with delivery=exactly-once."""


class Slot(NamedTuple):
    """A transactional id, with the batch of its open transaction.

    `next_epoch` is the producer epoch of a producer that has resumed the transaction, or -1.
    """

    epoch: int = -1
    state: str = _ABORTED
    batch: int = -1
    next_epoch: int = -1


class Attempt(NamedTuple):
    """One attempt at a task."""

    driver: int
    task: int
    batch: int
    step: AttemptStep = AttemptStep.LOOK
    slot: int = -1
    epoch: int = -1


class Driver(NamedTuple):
    """A driver and its batch. `step` is None while its tasks run; a message of -1 means that the task has not reported."""

    number: int
    batch: int
    left: tuple[int, ...]
    messages: tuple[Prepared | int | None, ...]
    step: DriverStep | None = None
    aborts: bool = False
    is_newest: bool = False
    """True until another driver fences this one."""
    decision: Decision | None = None
    listed: tuple[Prepared, ...] = ()
    has_decided: bool = False


class World(NamedTuple):
    """The whole state.

    `visible` has (batch, task) of each committed transaction, `done` counts Spark's committed batches.
    """

    slots: tuple[tuple[Slot, ...], ...]
    drivers: tuple[Driver, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    started: int = 0
    decision: Decision | None = None
    done: int = 0
    visible: tuple[tuple[int, int], ...] = ()
    flaw: str = ""
    is_over: bool = False
    """True if a driver has ended the last batch. In this state no transaction may be open."""
    begun: tuple[int, ...] = ()


def _last(world: World, batch: int, decision: Decision | None, rules: Rules) -> Decision | None:
    """Return the query's last decision, also counting markers of delivery=exactly-once. Raises `ProgressError`."""
    if not rules.asks_each_task and 0 not in world.begun:
        return decision
    return last_of("q", batch, decision, {task: Marker(0, _ROWS) for task in world.begun})


# Coordinators


def _with_slot(world: World, task: int, slot: int, changed: Slot) -> World:
    of_task = world.slots[task]
    of_task = (*of_task[:slot], changed, *of_task[slot + 1 :])
    return world._replace(slots=(*world.slots[:task], of_task, *world.slots[task + 1 :]))


def _ended(world: World, task: int, slot: int, commit: bool) -> World:
    """Commit or abort the open or empty transaction of a slot, and raise its epoch."""
    old = world.slots[task][slot]
    epoch = (old.next_epoch if old.next_epoch >= 0 else old.epoch) + 1
    if commit and old.state == _OPEN:
        world = world._replace(visible=tuple(sorted((*world.visible, (old.batch, task)))))
    return _with_slot(world, task, slot, Slot(epoch, _COMMITTED if commit else _ABORTED))


def _end(world: World, each: Prepared, commit: bool) -> World:
    """End a transaction if its slot still has this producer epoch. Otherwise change nothing."""
    slot = world.slots[each.task][each.slot]
    if slot.epoch == each.producer_epoch and slot.state in (_OPEN, _EMPTY):
        return _ended(world, each.task, each.slot, commit)
    if commit and slot.state == _ABORTED and slot.epoch == each.producer_epoch + 1:
        return world._replace(flaw=f"a winner of task {each.task} was aborted")
    return world


def _listed(world: World, rules: Rules) -> tuple[Prepared, ...]:
    states = (_OPEN, _EMPTY) if rules.sweeps_claimed else (_OPEN,)
    return tuple(
        Prepared(task, number, 0, slot.epoch)
        for task, of_task in enumerate(world.slots)
        for number, slot in enumerate(of_task)
        if slot.state in states
    )


# Attempts


def _attempt_steps(world: World, place: int, rules: Rules) -> Iterator[World]:
    attempt = world.attempts[place]
    rest = world.attempts[:place] + world.attempts[place + 1 :]
    machine = AttemptProtocol("q", attempt.task, attempt.batch, step=attempt.step)

    def gone(after: World) -> World:
        return after._replace(attempts=rest)

    def goes_on(after: World, **changed: int) -> World:
        moved = attempt._replace(step=machine.step, **changed)  # type: ignore[arg-type]
        return after._replace(attempts=(*rest, moved))

    match attempt.step:
        case AttemptStep.LOOK | AttemptStep.LOOK_AGAIN:
            seen = world.decision
            if attempt.step is AttemptStep.LOOK_AGAIN and not rules.looks_again:
                seen = None if attempt.batch == 0 else Decision(attempt.batch - 1, _ROWS, is_complete=True)
            try:
                machine.looked(_last(world, attempt.batch, seen, rules))
            except ProgressError:
                yield gone(world)
                return
            yield goes_on(world)
        case AttemptStep.CLAIM:
            yield from _claims(world, attempt, machine, goes_on, gone, rules)
        case AttemptStep.WRITE:
            slot = world.slots[attempt.task][attempt.slot]
            if slot.epoch != attempt.epoch or slot.next_epoch >= 0 or slot.state not in (_EMPTY, _OPEN):
                yield gone(world)
                return
            # Other processes cannot see the following steps, so they are combined with this one.
            machine.written()
            machine.prepared()
            opened = slot._replace(state=_OPEN, batch=attempt.batch)
            yield goes_on(_with_slot(world, attempt.task, attempt.slot, opened))
        case AttemptStep.COUNT:
            machine.counted()
            yield gone(_told(world, attempt._replace(slot=-1)))
        case AttemptStep.REPORT:
            yield gone(_told(world, attempt))


def _claims(world, attempt, machine, goes_on, gone, rules):  # type: ignore[no-untyped-def]
    """Claim the first slot that seemed to have no open transaction. Another attempt may have been faster."""
    machine.claimed()
    for number, slot in enumerate(world.slots[attempt.task]):
        if slot.state == _OPEN:
            # The slot was free a moment ago: the attempt resumes its transaction, and leaves it open.
            epoch = max(slot.epoch, slot.next_epoch) + 1
            if rules.claim_keeps_prepared:
                if slot.next_epoch < 0:
                    yield gone(_with_slot(world, attempt.task, number, slot._replace(next_epoch=epoch)))
                continue
            world = _ended(world, attempt.task, number, commit=False)
            slot = world.slots[attempt.task][number]
        claimed = Slot(slot.epoch + 1, _EMPTY)
        yield goes_on(_with_slot(world, attempt.task, number, claimed), slot=number, epoch=claimed.epoch)
        return


def _told(world: World, attempt: Attempt) -> World:
    """Report to the attempt's driver, if the driver still waits for this report."""
    for place, driver in enumerate(world.drivers):
        if (driver.number, driver.batch, driver.step) != (attempt.driver, attempt.batch, None):
            continue
        if driver.messages[attempt.task] != -1:
            continue
        report = None if attempt.slot < 0 else Prepared(attempt.task, attempt.slot, 0, attempt.epoch)
        messages = (*driver.messages[: attempt.task], report, *driver.messages[attempt.task + 1 :])
        return _with_driver(world, place, driver._replace(messages=messages))
    return world


# Drivers


def _with_driver(world: World, place: int, changed: Driver | None) -> World:
    rest = world.drivers[:place] + world.drivers[place + 1 :]
    return world._replace(drivers=rest if changed is None else (*rest[:place], changed, *rest[place:]))


def _machine(driver: Driver) -> DriverProtocol:
    reported = tuple(each for each in driver.messages if isinstance(each, Prepared))
    return DriverProtocol(
        "q",
        driver.batch,
        reported,
        _ROWS,
        aborts=driver.aborts,
        step=driver.step or DriverStep.FENCE,
        decision=driver.decision,
        listed=driver.listed,
        has_decided=driver.has_decided,
    )


def _driver_steps(world: World, place: int, rules: Rules, sizes: Sizes) -> Iterator[World]:
    driver = world.drivers[place]
    if driver.step is None:
        if all(each != -1 for each in driver.messages):
            early = None if rules.reads_after_fence else world.decision
            yield _with_driver(world, place, driver._replace(step=DriverStep.FENCE, decision=early))
        elif sizes.aborts:
            yield _with_driver(world, place, driver._replace(step=DriverStep.FENCE, aborts=True))
        return
    machine = _machine(driver)

    def goes_on(after: World, **changed: bool) -> World:
        moved = driver._replace(
            step=machine.step,
            decision=machine.decision,
            listed=machine.listed,
            has_decided=machine.has_decided,
            **changed,
        )
        return _with_driver(after, place, moved)

    def fails(after: World) -> World:
        """Return the state after a failed step.

        A failed `commit` is followed by `abort`, and a failed `abort` ends the query.
        """
        if driver.aborts:
            return _with_driver(after, place, None)
        return _with_driver(after, place, driver._replace(step=DriverStep.FENCE, aborts=True))

    is_replaced = not driver.is_newest and rules.fences_driver
    match driver.step:
        case DriverStep.FENCE:
            machine.fenced()
            fenced = tuple(each._replace(is_newest=False) for each in world.drivers)
            yield goes_on(world._replace(drivers=fenced), is_newest=True)
        case DriverStep.READ:
            seen = world.decision if rules.reads_after_fence or driver.aborts else driver.decision
            if seen is not None and not rules.rolls_forward:
                seen = attrs.evolve(seen, is_complete=True)
            if driver.aborts and not rules.abort_respects_decision:
                seen = None
            try:
                machine.read(seen if driver.aborts else _last(world, driver.batch, seen, rules))
            except ProgressError:
                yield fails(world)
                return
            if machine.step is DriverStep.DECIDE and not rules.decides_first:
                # The rule is switched off: winners are committed before the decision is written.
                for each in machine.reported:
                    world = _end(world, each, commit=True)
            if not rules.sweeps_incomplete_only and machine.step is DriverStep.DONE:
                machine.step = DriverStep.LIST
            yield goes_on(world)
        case DriverStep.ROLL_FORWARD:
            assert machine.decision is not None
            for each in machine.decision.winners:
                world = _end(world, each, commit=True)
            machine.rolled_forward()
            yield goes_on(world)
        case DriverStep.DECIDE:
            if is_replaced:
                yield fails(world)
                return
            machine.decided()
            world = world._replace(decision=machine.decision)
            yield goes_on(world)
            # The response is lost, although the decision is written.
            yield fails(world)
        case DriverStep.COMPLETE:
            for each in machine.reported:
                world = _end(world, each, commit=True)
            machine.completed()
            yield goes_on(world)
        case DriverStep.LIST:
            machine.found(_listed(world, rules))
            yield goes_on(world)
        case DriverStep.PROVE:
            if is_replaced and rules.proves_before_sweep:
                yield fails(world)
                return
            machine.proved()
            yield goes_on(world)
        case DriverStep.SWEEP | DriverStep.DROP:
            dropped = machine.superfluous
            if driver.step is DriverStep.DROP and not rules.abort_drops_only_own:
                dropped = _listed(world, rules)
            for each in dropped:
                if rules.sweeps_by_identity:
                    world = _end(world, each, commit=False)
                elif world.slots[each.task][each.slot].state in (_OPEN, _EMPTY):
                    world = _ended(world, each.task, each.slot, commit=False)
            if driver.step is DriverStep.SWEEP:
                machine.swept()
            else:
                machine.dropped()
            yield goes_on(world)
        case DriverStep.FINISH:
            if is_replaced:
                yield fails(world)
                return
            machine.finished()
            yield goes_on(world._replace(decision=machine.decision))
            yield fails(world._replace(decision=machine.decision))
        case DriverStep.DONE:
            yield _after_done(world, place, driver, sizes)


def _after_done(world: World, place: int, driver: Driver, sizes: Sizes) -> World:
    if driver.aborts:
        return _with_driver(world, place, None)
    world = world._replace(done=max(world.done, driver.batch + 1))
    if driver.batch + 1 == sizes.batches:
        return _with_driver(world._replace(is_over=True), place, None)
    following = Driver(driver.number, driver.batch + 1, (sizes.attempts,) * sizes.tasks, (-1,) * sizes.tasks)
    return _with_driver(world, place, following)


# The search


def _following(world: World, rules: Rules, sizes: Sizes) -> Iterator[World]:
    """Yield all possible next states."""
    for place in range(len(world.attempts)):
        yield from _attempt_steps(world, place, rules)
    for place, driver in enumerate(world.drivers):
        yield from _driver_steps(world, place, rules, sizes)
        if driver.step is None:
            for task, left in enumerate(driver.left):
                if left and driver.messages[task] == -1:
                    fewer = (*driver.left[:task], left - 1, *driver.left[task + 1 :])
                    begun = _with_driver(world, place, driver._replace(left=fewer))
                    attempt = Attempt(driver.number, task, driver.batch)
                    begun = begun._replace(attempts=(*world.attempts, attempt))
                    yield from _attempt_steps(begun, len(world.attempts), rules)
    if world.started < sizes.drivers and world.done < sizes.batches:
        left = (sizes.attempts,) * sizes.tasks
        driver = Driver(world.started, world.done, left, (-1,) * sizes.tasks)
        yield world._replace(drivers=(*world.drivers, driver), started=world.started + 1)


_STEPS = {step: number for number, step in enumerate(AttemptStep)}


def _order(attempt: Attempt) -> tuple[int, ...]:
    return (*attempt[:3], _STEPS[attempt.step], attempt.slot, attempt.epoch)


def _canonical(world: World) -> World:
    """Return an equivalent state: finished parts are removed, and epochs are relative to those of the slots."""
    waiting = {
        (driver.number, driver.batch, task)
        for driver in world.drivers
        if driver.step is None
        for task, message in enumerate(driver.messages)
        if message == -1
    }
    slots = world.slots

    def age(task: int, slot: int, epoch: int) -> int:
        """Return 1 for the slot's epoch, 0 for the previous one, and -1 for older ones."""
        return max(-1, epoch - slots[task][slot].epoch + 1)

    attempts = []
    for each in world.attempts:
        epoch = each.epoch if each.slot < 0 else age(each.task, each.slot, each.epoch)
        is_heard = (each.driver, each.batch, each.task) in waiting
        if each.step in (AttemptStep.REPORT, AttemptStep.COUNT) and not is_heard:
            continue
        if each.step in (AttemptStep.WRITE, AttemptStep.LOOK_AGAIN) and not is_heard and epoch < 1:
            continue
        attempts.append(each._replace(epoch=epoch))
    attempts.sort(key=_order)

    def aged(found: Iterable[Prepared]) -> tuple[Prepared, ...]:
        return tuple(
            Prepared(each.task, each.slot, 0, age(each.task, each.slot, each.producer_epoch))
            for each in found
        )

    def aged_decision(found: Decision | None) -> Decision | None:
        if found is None or not found.winners:
            return found
        return attrs.evolve(found, winners=() if found.is_complete else aged(found.winners))

    drivers = tuple(
        each._replace(
            messages=tuple(aged([one])[0] if isinstance(one, Prepared) else one for one in each.messages),
            listed=aged(each.listed),
            decision=aged_decision(each.decision),
        )
        for each in world.drivers
    )
    return world._replace(
        slots=tuple(
            tuple(each._replace(epoch=1, next_epoch=2 if each.next_epoch >= 0 else -1) for each in of_task)
            for of_task in slots
        ),
        attempts=tuple(attempts),
        drivers=drivers,
        decision=aged_decision(world.decision),
    )


def _flaw(world: World, sizes: Sizes) -> str:
    """Return the first fault in a state, or an empty string."""
    if world.flaw:
        return world.flaw
    if len(set(world.visible)) < len(world.visible):
        return "rows are doubled"
    for batch in range(world.done):
        for task in range(sizes.tasks):
            if (batch, task) not in world.visible:
                return f"batch {batch} is lost"
    if world.is_over and any(slot.state == _OPEN for of_task in world.slots for slot in of_task):
        return "a transaction stays open"
    return ""


def fault(rules: Rules, sizes: Sizes) -> tuple[str, int]:
    """Search all states; return the first fault found (or an empty string), and the number of states seen."""
    visible = tuple((0, task) for task in sizes.begun)
    first = World(((Slot(),) * sizes.slots,) * sizes.tasks, visible=visible, begun=sizes.begun)
    # Only hashes are kept, because whole states take ten times the memory. Two of 100,000 states share a hash with a
    # probability of 1e-9.
    seen, waiting = {hash(first)}, [first]
    while waiting:
        world = waiting.pop()
        flaw = _flaw(world, sizes)
        if flaw:
            return flaw, len(seen)
        for following in _following(world, rules, sizes):
            after = _canonical(following)
            key = hash(after)
            if key not in seen:
                seen.add(key)
                waiting.append(after)
    return "", len(seen)
