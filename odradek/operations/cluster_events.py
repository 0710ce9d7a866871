"""Turns the metadata log into sentences for people about changes of leaders, with the reasons, and about
changes of nodes. PURE.

`Narrator` reads the records of the log. It remembers the facts that its sentences need: names of topics, leaders and
replicas, the state of brokers. It infers a reason from neighbouring records: a broker was fenced, a controlled
shutdown or reassignment began, the preferred replica is in sync again. Otherwise the sentence gives no reason.

Records that are of no use to people (blocks of producer ids, empty records) are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from odradek.operations.access_events import AccessNarrator
from odradek.serving.disk_troubles import TROUBLED_LOG_DIRS
from odradek.wire.messages import control_records, metadata_records
from odradek.wire.secret_fields import shown
from odradek.wire.structure import Message

__all__ = ["Event", "Narrator"]

_NO_LEADER = -1
_UNCHANGED = -2
_TOPIC = 2
_RESOURCES = {2: "topic", 4: "broker", 16: "client metrics", 32: "group"}


@attrs.frozen
class Event:
    """An event of the cluster. `subject` is what has changed (`words-0`, `broker 2`), and `text` the rest of the
    sentence. So events with equal texts can share a line.
    """

    offset: int
    time_ms: int
    kind: str
    subject: str
    text: str
    epoch: int = -1
    """The epoch of the controller that wrote the record."""
    by_quorum: bool = False
    """True if no client has requested the change: for elections, and for the first set of voters."""
    before: str | None = None
    """The value before the change, if the record sets a single value, or a partition has changed. Secrets are hidden."""
    after: str | None = None
    """The value after the change; None if it was removed, or there is no single value."""

    def __str__(self) -> str:
        return f"{self.subject} {self.text}"


@attrs.define
class _Broker:
    address: str
    fenced: bool
    stopping: bool
    directories: int


@attrs.define
class _Partition:
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    led_since_ms: int
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


@attrs.define
class _Topic:
    name: str
    partitions: dict[int, _Partition]


class Narrator:
    """Turns the metadata log into events. Call `load` for the records of a snapshot, then `narrate` for the batches
    after it.

    `named` collects the names of all topics in the log, including deleted ones. `controllers` collects the controller
    that led in each epoch.
    """

    def __init__(self, named: set[str] | None = None, controllers: dict[int, int] | None = None) -> None:
        self._named: set[str] = set() if named is None else named
        self._controllers_of: dict[int, int] = {} if controllers is None else controllers
        self._brokers: dict[int, _Broker] = {}
        self._topics: dict[bytes, _Topic] = {}
        self._voters: tuple[int, ...] = ()
        self._controller = _NO_LEADER
        self._controls_since_ms = 0
        self._controllers: set[int] = set()
        self._troubled: dict[str, str] = {}
        """For each broker id (as text), its list of disks that accept no records now (`odradek.troubled.log.dirs`).
        """
        self._values: dict[tuple[int, str, str], str] = {}
        """The value of each configuration key that is set, by type and name of the resource. Secrets are hidden."""
        self._features: dict[str, int] = {}
        self._change: tuple[str | None, str | None] = (None, None)
        """What the present record changes: the value before, and the value after."""
        self._access = AccessNarrator()
        self._leaving: set[int] = set()
        """The brokers that the present batch fences. In a batch, the fencing record follows the records of its
        consequences.
        """
        self._narrations: dict[type[Message], Callable[[Any, int], Iterator[tuple[str, str, str]]]] = {
            metadata_records.RegisterBrokerRecord: self._registered,
            metadata_records.UnregisterBrokerRecord: self._unregistered,
            metadata_records.FenceBrokerRecord: lambda each, _: self._fenced(each.id),
            metadata_records.UnfenceBrokerRecord: lambda each, _: self._unfenced(each.id),
            metadata_records.BrokerRegistrationChangeRecord: self._broker_changed,
            metadata_records.TopicRecord: self._topic_created,
            metadata_records.RemoveTopicRecord: self._topic_removed,
            metadata_records.PartitionRecord: self._partition_created,
            metadata_records.PartitionChangeRecord: self._partition_changed,
            metadata_records.ConfigRecord: self._configured,
            metadata_records.FeatureLevelRecord: self._feature_changed,
            metadata_records.RegisterControllerRecord: self._controller_registered,
            control_records.VotersRecord: self._voters_changed,
            **self._access.narrations,
        }

    def load(self, records: Iterable[Message | None]) -> None:
        """Read the records of a snapshot. No events are made from them, because the snapshot's state is older
        than the first event.
        """
        for record in records:
            for _ in self._sentences(record, 0, 0):
                pass

    def narrate(
        self, offset: int, epoch: int, time_ms: int, records: Iterable[Message | None]
    ) -> list[Event]:
        """Turn the records of one batch into events. `offset` is the batch's first offset; times are in milliseconds
        since 1970.
        """
        records = tuple(records)
        self._leaving = {node for record in records for node in _leaving(record)}
        events = []
        created: dict[str, tuple[int, int, int]] = {}
        for place, record in enumerate(records):
            if isinstance(record, metadata_records.PartitionRecord):
                topic = self._topics.get(bytes(record.topic_id))
                name = "?" if topic is None else topic.name
                first, count, _ = created.get(name, (offset + place, 0, 0))
                created[name] = (first, count + 1, len(record.replicas))
            # The first leader writes the first set of voters, with the values that were given when the log
            # was formatted.
            by_quorum = isinstance(record, control_records.LeaderChangeMessage) or (
                isinstance(record, control_records.VotersRecord) and not self._voters
            )
            self._change = self._access.change = (None, None)
            for kind, subject, text in self._sentences(record, time_ms, epoch):
                change = self._access.change if kind == "quota" else self._change
                events.append(Event(offset + place, time_ms, kind, subject, text, epoch, by_quorum, *change))
        for name, (first, count, replicas) in created.items():
            what = f"has {_counted(count, 'new partition')} with {_counted(replicas, 'replica')}"
            events.append(Event(first, time_ms, "partitions", f"topic {name}", what, epoch))
        # In the log, the record of a broker's change comes after the records of its consequences. People want
        # to read the cause first.
        return sorted(events, key=lambda event: (event.kind != "broker", event.offset))

    def _sentences(self, record: Message | None, time_ms: int, epoch: int) -> Iterator[tuple[str, str, str]]:
        if isinstance(record, control_records.LeaderChangeMessage):
            self._controllers_of[epoch] = record.leader_id
            yield from self._quorum_led(record, time_ms, epoch)
        elif record is not None and (narration := self._narrations.get(type(record))) is not None:
            yield from narration(record, time_ms)

    # -- the quorum -----------------------------------------------------------------------------------------------

    def _quorum_led(self, record: Any, time_ms: int, epoch: int) -> Iterator[tuple[str, str, str]]:
        text = f"leads the quorum in epoch {epoch}"
        if record.granting_voters:
            text += f", by the votes of {_numbers(each.voter_id for each in record.granting_voters)}"
        if self._controller not in (_NO_LEADER, record.leader_id):
            text += f"; controller {self._controller} had led for {_span(time_ms - self._controls_since_ms)}"
        self._controller = record.leader_id
        self._controls_since_ms = time_ms
        yield "controller", f"controller {record.leader_id}", text

    def _voters_changed(self, record: Any, _: int) -> Iterator[tuple[str, str, str]]:
        voters = tuple(sorted(each.voter_id for each in record.voters))
        before, self._voters = self._voters, voters
        changes = [f"{node} has got a vote" for node in voters if node not in before] if before else []
        changes += [f"{node} has lost its vote" for node in before if node not in voters]
        text = f"has the {'voter' if len(voters) == 1 else 'voters'} {_numbers(voters)}" + (
            f": {', '.join(changes)}" if changes else ""
        )
        yield "voters", "the quorum", text

    def _controller_registered(self, record: Any, _: int) -> Iterator[tuple[str, str, str]]:
        again = record.controller_id in self._controllers
        self._controllers.add(record.controller_id)
        yield "controller", f"controller {record.controller_id}", "has started again" if again else "has come"

    def _feature_changed(self, record: Any, _: int) -> Iterator[tuple[str, str, str]]:
        before, self._features[record.name] = self._features.get(record.name), record.feature_level
        self._change = (None if before is None else str(before), str(record.feature_level))
        yield "feature", f"feature {record.name}", f"is at level {record.feature_level}"

    def _configured(self, record: Any, _: int) -> Iterator[tuple[str, str, str]]:
        kind = _RESOURCES.get(record.resource_type, "resource")
        subject = f"{kind} {record.resource_name}" if record.resource_name else "every broker"
        if record.name == TROUBLED_LOG_DIRS:
            entries = [entry.split(":", 3) for entry in (record.value or "").split(",")]
            troubles = [
                f"{path} is {state}" for _, state, _, path in (each for each in entries if len(each) == 4)
            ]
            self._troubled[record.resource_name] = ", ".join(troubles)
            yield (
                "broker",
                subject,
                f"says that {', '.join(troubles)}" if troubles else "says that its disks are well again",
            )
            return
        key = (record.resource_type, record.resource_name, record.name)
        value = None if record.value is None else str(shown(record, "value"))
        self._change = (self._values.pop(key, None), value)
        if value is not None:
            self._values[key] = value
        if record.value is None:
            text = f"has the default of {record.name} again"
        else:
            text = f"has {record.name}={shown(record, 'value')}"
        yield "config", subject, text

    # -- brokers --------------------------------------------------------------------------------------------------

    def _registered(self, record: Any, _: int) -> Iterator[tuple[str, str, str]]:
        node = record.broker_id
        again = node in self._brokers
        endpoint = record.end_points[0] if record.end_points else None
        address = "" if endpoint is None else f"{endpoint.host}:{endpoint.port}"
        self._brokers[node] = _Broker(
            address, record.fenced, record.in_controlled_shutdown, len(record.log_dirs)
        )
        rack = f" in rack {record.rack}" if record.rack else ""
        yield "broker", f"broker {node}", f"has {'started again' if again else 'come'} at {address}{rack}"

    def _unregistered(self, record: Any, _: int) -> Iterator[tuple[str, str, str]]:
        self._brokers.pop(record.broker_id, None)
        yield "broker", f"broker {record.broker_id}", "was removed"

    def _fenced(self, node: int) -> Iterator[tuple[str, str, str]]:
        broker = self._brokers.get(node)
        stopping = broker is not None and broker.stopping
        if broker is not None:
            broker.fenced = True
        reason = "it has stopped" if stopping else "it does not answer"
        yield "broker", f"broker {node}", f"is fenced: {reason}"

    def _unfenced(self, node: int) -> Iterator[tuple[str, str, str]]:
        broker = self._brokers.get(node)
        if broker is not None:
            broker.fenced = False
        yield "broker", f"broker {node}", "serves"

    def _broker_changed(self, record: Any, _: int) -> Iterator[tuple[str, str, str]]:
        node = record.broker_id
        broker = self._brokers.get(node)
        if record.in_controlled_shutdown == 1:
            if broker is not None:
                broker.stopping = True
            if record.fenced != 1:
                yield "broker", f"broker {node}", "is about to stop, and hands over what it leads"
        if record.fenced == 1:
            yield from self._fenced(node)
        elif record.fenced == -1:
            yield from self._unfenced(node)
        if record.log_dirs and broker is not None:
            before, broker.directories = broker.directories, len(record.log_dirs)
            if broker.directories < before:
                lost = _counted(before - broker.directories, "log directory", "log directories")
                yield "broker", f"broker {node}", f"has lost {lost}"

    def _state_of(self, node: int) -> str | None:
        """Return the reason why a broker cannot lead or follow (`2 is down`); None if it is up."""
        broker = self._brokers.get(node)
        if broker is None:
            return f"{node} is gone"
        if broker.stopping:
            return f"{node} is stopping" if not broker.fenced else f"{node} has stopped"
        return f"{node} is down" if broker.fenced or node in self._leaving else None

    # -- topics and partitions ------------------------------------------------------------------------------------

    def _topic_created(self, record: Any, _: int) -> Iterator[tuple[str, str, str]]:
        self._topics[bytes(record.topic_id)] = _Topic(record.name, {})
        self._named.add(record.name)
        yield "topic", f"topic {record.name}", "was created"

    def _topic_removed(self, record: Any, _: int) -> Iterator[tuple[str, str, str]]:
        topic = self._topics.pop(bytes(record.topic_id), None)
        if topic is not None:
            yield "topic", f"topic {topic.name}", "was deleted"

    def _partition_created(self, record: Any, time_ms: int) -> Iterator[tuple[str, str, str]]:
        topic = self._topics.get(bytes(record.topic_id))
        if topic is not None:
            topic.partitions[record.partition_id] = _Partition(
                tuple(record.replicas),
                tuple(record.isr),
                record.leader,
                time_ms,
                tuple(record.adding_replicas),
                tuple(record.removing_replicas),
                tuple(record.eligible_leader_replicas or ()),
                tuple(record.last_known_elr or ()),
            )
        yield from ()

    def _partition_changed(self, record: Any, time_ms: int) -> Iterator[tuple[str, str, str]]:
        topic = self._topics.get(bytes(record.topic_id))
        old = None if topic is None else topic.partitions.get(record.partition_id)
        if topic is None or old is None:
            return
        new = attrs.evolve(
            old,
            replicas=_or(record.replicas, old.replicas),
            isr=_or(record.isr, old.isr),
            leader=old.leader if record.leader == _UNCHANGED else record.leader,
            adding=_or(record.adding_replicas, old.adding),
            removing=_or(record.removing_replicas, old.removing),
            elr=_or(record.eligible_leader_replicas, old.elr),
            last_known_elr=_or(record.last_known_elr, old.last_known_elr),
        )
        if new.leader != old.leader:
            new.led_since_ms = time_ms
        topic.partitions[record.partition_id] = new
        subject = f"{topic.name}-{record.partition_id}"
        self._change = (_placement(old), _placement(new))
        for kind, text in (
            *self._moves(old, new),
            *self._leads(old, new, time_ms),
            *self._syncs(old, new),
        ):
            yield kind, subject, text

    def _moves(self, old: _Partition, new: _Partition) -> Iterator[tuple[str, str]]:
        if (new.adding, new.removing) != (old.adding, old.removing) and (new.adding or new.removing):
            parts = [f"to {_numbers(new.adding)}"] if new.adding else []
            parts += [f"off {_numbers(new.removing)}"] if new.removing else []
            yield "move", f"begins to move {', '.join(parts)}"
        elif (old.adding or old.removing) and not (new.adding or new.removing):
            done = not set(old.removing) & set(new.replicas) and set(old.adding) <= set(new.replicas)
            verb = "has moved: it is" if done else "does not move any longer: it stays"
            yield "move", f"{verb} on {_numbers(new.replicas)}"
        elif new.replicas != old.replicas and not (new.adding or new.removing):
            yield "move", f"has the replicas {_numbers(new.replicas)}"

    def _leads(self, old: _Partition, new: _Partition, time_ms: int) -> Iterator[tuple[str, str]]:
        if new.leader == old.leader:
            waited = old.elr or old.last_known_elr
            if new.leader == _NO_LEADER and waited and not (new.isr or new.elr or new.last_known_elr):
                yield (
                    "offline",
                    f"waits for {_numbers(waited)} no longer: its log is gone; an operator has to choose a leader",
                )
            return
        in_sync = self._in_sync(new)
        if new.leader == _NO_LEADER:
            reason = self._state_of(old.leader)
            waits = new.elr or new.last_known_elr
            text = f"has no leader: {reason or f'{old.leader} leads no longer'}, {in_sync}"
            yield "offline", text + (f"; it waits for {_numbers(waits)}" if waits else "")
            return
        if old.leader == _NO_LEADER:
            text = f"is led again, by {new.leader} (it had no leader for {_span(time_ms - old.led_since_ms)}), {in_sync}"
        else:
            why = self._why(old, new)
            reason = f", because {why}" if why else ""
            text = f"is led by {new.leader} instead of {old.leader}{reason} ({in_sync})"
        # After an unclean election only the leader is in sync. This may also be so after the last step of a move, but
        # then the leader was in `adding`.
        if new.leader not in (*old.isr, *old.elr, *old.adding) and new.isr == (new.leader,):
            if new.leader in old.last_known_elr and len(old.last_known_elr) > 1:
                text += "; its log is the longest of those in sync last, and they did not stop cleanly: the newest records may be lost"
            elif new.leader in old.last_known_elr:
                text += "; it led last and did not stop cleanly: if its machine went down, its newest records may be lost"
            else:
                text += "; it was not in sync: records may be lost"
        yield "leader", text

    def _in_sync(self, partition: _Partition) -> str:
        """List the replicas in sync. Those on brokers that are leaving stand apart, since the list loses them soon."""
        leaving = [
            node
            for node in sorted(partition.isr)
            if node != partition.leader and node in self._brokers and self._state_of(node) is not None
        ]
        staying = [node for node in sorted(partition.isr) if node not in leaving]
        if not partition.isr:
            return "none in sync"
        also = f", still listed: {_numbers(leaving)}" if leaving else ""
        return f"in sync: {_numbers(staying)}{also}"

    def _why(self, old: _Partition, new: _Partition) -> str:
        state = self._state_of(old.leader)
        if state is not None:
            return state
        if old.leader not in new.replicas:
            return f"{old.leader} has no replica any longer"
        if self._troubled.get(str(old.leader)):
            return f"of {old.leader} {self._troubled[str(old.leader)]}"
        if new.replicas and new.leader == new.replicas[0]:
            return f"{new.leader} is preferred"
        if old.leader not in new.isr:
            return f"{old.leader} is not in sync"
        return ""

    def _syncs(self, old: _Partition, new: _Partition) -> Iterator[tuple[str, str]]:
        if new.leader != old.leader:
            return
        lost = [node for node in old.isr if node not in new.isr and node in new.replicas]
        come = [node for node in new.isr if node not in old.isr]
        if lost:
            states = [state for state in map(self._state_of, lost) if state is not None]
            reason = f" ({', '.join(states)})" if states else ""
            eligible = f", eligible to lead: {_numbers(new.elr)}" if new.elr else ""
            yield (
                "isr",
                f"has lost {_numbers(lost)} from its replicas in sync{reason}, left: {_numbers(sorted(new.isr))}{eligible}",
            )
        if come:
            yield "isr", f"has {_numbers(come)} in sync, in all: {_numbers(sorted(new.isr))}"


def _leaving(record: Message | None) -> Iterator[int]:
    """Yield the id of the broker that this record fences, or nothing if it fences no broker."""
    if isinstance(record, metadata_records.FenceBrokerRecord):
        yield record.id
    elif isinstance(record, metadata_records.BrokerRegistrationChangeRecord) and record.fenced == 1:
        yield record.broker_id


def _placement(partition: _Partition) -> str:
    """Describe where a partition is, for the difference between two moments."""
    leader = "none" if partition.leader == _NO_LEADER else str(partition.leader)
    text = f"leader {leader}, replicas {_numbers(partition.replicas)}, in sync {_numbers(partition.isr)}"
    return f"{text}, eligible {_numbers(partition.elr)}" if partition.elr else text


def _or(news: list[int] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if news is None else tuple(news)


def _numbers(nodes: Iterable[int]) -> str:
    return ",".join(map(str, nodes)) or "none"


def _counted(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _span(milliseconds: int) -> str:
    seconds = max(0, milliseconds) / 1000
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} seconds" if seconds < 10 else f"{seconds:.0f} seconds"
