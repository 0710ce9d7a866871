"""Group members over plain sockets (classic protocol), which follow a rebalance as fast as possible."""

from __future__ import annotations

import selectors
import time
from collections.abc import Sequence

from odradek.wire.api_keys import ApiKey
from odradek.wire.codec import encode
from odradek.wire.error_codes import ErrorCode
from odradek.wire.messages.data_records import ConsumerProtocolSubscription
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from odradek.wire.structure import Message
from testkit.raw_requests import RawConnection, exchange, framed

HEARTBEAT_SECONDS = 0.1
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION = 3, 3, 4
"""The versions of the requests. JoinGroup has version 3, which needs no second request for a member id."""
TIMEOUT_SECONDS = 60.0


def join_request(group: str, member_id: str = "") -> JoinGroupRequest:
    subscription = b"\0\0" + encode(ConsumerProtocolSubscription(["flights", "weather"]), 0)
    protocols = [JoinGroupRequestProtocol("range", subscription)]
    return JoinGroupRequest(group, 30_000, 30_000, member_id, None, "consumer", protocols)


class EagerMember:
    """A member that sends a heartbeat every 100 ms, and follows every rebalance at once."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.wire = RawConnection(bootstrap)
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.assigned = -1
        """The generation of the member's present assignment; -1 for none."""
        self._waits_for: type[Message] | None = None
        self._next_heartbeat = 0.0

    def join(self) -> None:
        self._ask(join_request(self.group, self.member_id), JOIN_VERSION)

    def _ask(self, request: Message, version: int) -> None:
        self._waits_for = type(request)
        self.wire.send(request, version)

    def look(self, now: float) -> None:
        """Send a heartbeat if it is due and no answer is awaited."""
        if self._waits_for is None and now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_SECONDS
            self._ask(HeartbeatRequest(self.group, self.generation, self.member_id), HEARTBEAT_VERSION)

    def react(self) -> None:
        """Read an answer from the socket, and send the next request of the protocol."""
        self.wire.pull()
        while self._waits_for is not None:
            answer = self.wire.receive_now(self._waits_for, _VERSIONS[self._waits_for])
            if answer is None:
                return
            waited, self._waits_for = self._waits_for, None
            code = ErrorCode(answer.error_code)
            if waited is JoinGroupRequest and not code:
                self.member_id, self.generation = answer.member_id, answer.generation_id
                given = [SyncGroupRequestAssignment(each.member_id, bytes(60)) for each in answer.members]
                self._ask(
                    SyncGroupRequest(self.group, self.generation, self.member_id, None, None, None, given),
                    SYNC_VERSION,
                )
            elif waited is SyncGroupRequest and not code:
                self.assigned = self.generation
            elif code is ErrorCode.REBALANCE_IN_PROGRESS:
                self.join()
            elif code:
                raise RuntimeError(f"{waited.__name__}: {code.name}")


_VERSIONS: dict[type[Message], int] = {
    JoinGroupRequest: JOIN_VERSION,
    SyncGroupRequest: SYNC_VERSION,
    HeartbeatRequest: HEARTBEAT_VERSION,
}


def run_until_assigned(members: Sequence[EagerMember]) -> None:
    """Run the members until all have an assignment of the same generation."""
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member.wire.socket, selectors.EVENT_READ, member)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len({member.assigned for member in members}) > 1 or members[0].assigned < 0:
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError(f"the rebalance has not ended after {TIMEOUT_SECONDS:g} s")
            for member in members:
                member.look(now)
            for key, _ in selector.select(HEARTBEAT_SECONDS / 4):
                key.data.react()


def wait_for_coordinator(bootstrap: str) -> None:
    """Wait until there is a coordinator. (The first FindCoordinator creates `__consumer_offsets`.)"""
    request = FindCoordinatorRequest("g", 0, ["g"])
    while True:
        answer = exchange(bootstrap, framed(ApiKey.FIND_COORDINATOR, 4, request), ApiKey.FIND_COORDINATOR, 4)
        if not answer.coordinators[0].error_code:
            return
        time.sleep(0.05)
