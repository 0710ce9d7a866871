"""Scripts for the state machine of a member in a group of the new protocol (KIP-848). Each line is one event.

    subscribe a b          the application subscribes to topics
    pattern a.*            the application subscribes to a pattern that the coordinator matches
    join                   the member starts to join
    > epoch=0 full ...     the next heartbeat must have these fields
    < epoch=1 a:0,1 b:0    the coordinator answers with an assignment (`-` if it is empty; nothing if there is none)
    adopt                  the application adopts the target
    begin, end             the application begins to adopt the target, and has adopted it
    unanswered             the heartbeat in flight gets no answer
    lose fenced            the membership ends for this reason
    stale, leave           the member leaves; a line with `>` must show its last heartbeat
    know c, forget a       metadata begins or ceases to know this topic
    = stable               the state; with `!` the application has to act, with `*` a heartbeat is urgent

The ids of topics a, b and c are made of their letters. Metadata knows a and b from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek.client.consumer.member_machine import Interest, MemberMachine, MemberState
from odradek.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from odradek.wire.topic_partition import TopicPartition

__all__ = ["MemberScript", "topic_id"]


def topic_id(name: str) -> bytes:
    """Return the id of a topic with this name."""
    return name.encode().ljust(16, b"-")


class MemberScript:
    """Plays a script on the state machine of a member. The first line whose expectation fails is named in the error."""

    def __init__(self, **machine: Any) -> None:
        ids = iter(("me", "a second id"))
        self.machine = MemberMachine("g", lambda: next(ids), rebalance_timeout_ms=60_000, **machine)
        self.interest = Interest()
        self.names = {topic_id(name): name for name in "ab"}
        self._last: ConsumerGroupHeartbeatRequest | None = None
        self._coming: dict[TopicPartition, bytes] = {}

    def play(self, script: str) -> None:
        """Do what each line says."""
        for number, line in enumerate(script.strip().splitlines(), 1):
            word, _, rest = line.split("#")[0].strip().partition(" ")
            if word:
                try:
                    _ACTIONS[word](self, rest.strip())
                except AssertionError as error:
                    raise AssertionError(f"line {number}, {line.strip()!r}: {error}") from error

    def _subscribe(self, topics: str) -> None:
        self.interest = Interest(tuple(sorted(topics.split())))

    def _pattern(self, pattern: str) -> None:
        self.interest = Interest((), pattern)

    def _join(self, _: str) -> None:
        self.machine.join()

    def _heartbeat(self, expected: str) -> None:
        request, self._last = self._last, None
        found = _written(request or self.machine.heartbeat(self.interest))
        assert found == expected, f"the heartbeat is {found!r} instead of {expected!r}"

    def _answer(self, text: str) -> None:
        epoch, _, assigned = text.partition(" ")
        assignment = None
        if assigned:
            topics = [] if assigned == "-" else [each.split(":") for each in assigned.split()]
            assignment = Assignment(
                [TopicPartitions(topic_id(name), [*map(int, indexes.split(","))]) for name, indexes in topics]
            )
        response = ConsumerGroupHeartbeatResponse(
            member_id="me", member_epoch=int(epoch.removeprefix("epoch=")), assignment=assignment
        )
        self.machine.answered(response)

    def _adopt(self, _: str) -> None:
        self._begin(_)
        self._end(_)

    def _begin(self, _: str) -> None:
        assert self.machine.needs_application(self.names), (
            "the machine has no target for the application to adopt"
        )
        self._coming = self.machine.resolved(self.names)
        self.machine.adopting(self._coming)

    def _end(self, _: str) -> None:
        self.machine.adopted(self._coming, self.machine.incarnation)

    def _unanswered(self, _: str) -> None:
        self.machine.unanswered()

    def _lose(self, state: str) -> None:
        self.machine.lose(MemberState(state))

    def _stale(self, _: str) -> None:
        self._last = self.machine.go_stale()

    def _leave(self, expected: str) -> None:
        self._last = self.machine.leave()
        assert expected != "silently" or self._last is None, (
            "the member leaves by a heartbeat, but should leave silently"
        )

    def _unsubscribe(self, _: str) -> None:
        self.machine.unsubscribe()

    def _know(self, name: str) -> None:
        self.names[topic_id(name)] = name

    def _forget(self, name: str) -> None:
        del self.names[topic_id(name)]

    def _state(self, expected: str) -> None:
        machine = self.machine
        found = machine.state.value
        found += "!" if machine.needs_application(self.names) else ""
        found += "*" if machine.is_urgent(self.interest) else ""
        assert found == expected, f"the state is {found} instead of {expected}"


_ACTIONS: dict[str, Callable[[MemberScript, str], None]] = {
    "subscribe": MemberScript._subscribe,
    "pattern": MemberScript._pattern,
    "join": MemberScript._join,
    ">": MemberScript._heartbeat,
    "<": MemberScript._answer,
    "adopt": MemberScript._adopt,
    "begin": MemberScript._begin,
    "end": MemberScript._end,
    "unanswered": MemberScript._unanswered,
    "lose": MemberScript._lose,
    "stale": MemberScript._stale,
    "leave": MemberScript._leave,
    "unsubscribe": MemberScript._unsubscribe,
    "know": MemberScript._know,
    "forget": MemberScript._forget,
    "=": MemberScript._state,
}


def _written(request: ConsumerGroupHeartbeatRequest) -> str:
    assert (request.group_id, request.member_id) == ("g", "me")
    parts = [f"epoch={request.member_epoch}"]
    if request.rebalance_timeout_ms >= 0:
        assert request.rebalance_timeout_ms == 60_000
        parts.append("full")
    for name, value in (("instance", request.instance_id), ("rack", request.rack_id)):
        if value is not None:
            parts.append(f"{name}={value}")
    if request.subscribed_topic_names is not None:
        parts.append(f"topics={','.join(request.subscribed_topic_names) or '-'}")
    if request.subscribed_topic_regex is not None:
        parts.append(f"pattern={request.subscribed_topic_regex or '-'}")
    if request.server_assignor is not None:
        parts.append(f"assignor={request.server_assignor}")
    if request.topic_partitions is not None:
        owned = [
            f"{topic.topic_id.decode().rstrip('-')}:{','.join(map(str, topic.partitions))}"
            for topic in request.topic_partitions
        ]
        parts.append(f"owned={'+'.join(owned) or '-'}")
    return " ".join(parts)
