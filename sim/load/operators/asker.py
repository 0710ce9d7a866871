"""A client that calls every API of nodes in every version, with valid and slightly wrong arguments. PORTED.

APIs and versions come from the node's own table. An answer must have the requested version, its exact length, and
error codes that Kafka has. UNKNOWN_SERVER_ERROR means an unexpected exception in the node, so a correct node never
sends it. A node may also close the connection instead of answering.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from odradek.client.admin import NewTopic
from odradek.env.ports import Conn, ConnectionLost
from odradek.serving.api_table import ApiTable
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from odradek.wire.framing.connection import NEED_DATA, ClientConnection, ConnectionClosed, ResponseReceived
from odradek.wire.structure import Structure
from sim.history import SafetyViolation
from sim.load.operators.drawn_requests import ASKED_NAMES, CONTROLLER_ASKED, draw_request
from sim.load.operators.duty import Duty
from sim.machine.cluster_members import BROKER_PORT, CONTROLLER_PORT
from sim.machine.members import Member

ANSWER_SECONDS_MAX = 3.0
REQUESTS_PER_CONNECTION = 8
CONTROLLER_SHARE = 0.15
TOO_NEW_PROBABILITY = 0.03
RECEIVE_BYTES = 1 << 14
CREATE_SECONDS_MAX = 60.0
MAY_NOT_KNOW = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
"""APIs that answer some bad requests with UNKNOWN_SERVER_ERROR, as in Kafka."""

__all__ = ["Asker", "error_codes"]


def error_codes(answer: object) -> Iterator[int]:
    """Yield every error code that an answer contains."""
    if isinstance(answer, Structure):
        for field in attrs.fields(type(answer)):
            value = getattr(answer, field.name)
            if field.name.endswith("error_code") and isinstance(value, int):
                yield value
            else:
                yield from error_codes(value)
    elif isinstance(answer, list):
        for each in answer:
            yield from error_codes(each)


class Asker(Duty):
    """A client that sends random requests."""

    calm_seconds_max = 0.3

    async def setup(self) -> None:
        topic = NewTopic(ASKED_NAMES[0], 2, self.site.replicas, {"min.insync.replicas": "1"})
        await self.load.create_topics(self.client, [topic], CREATE_SECONDS_MAX)

    async def step(self) -> None:
        random = self.random
        asks_controller = random.random() < CONTROLLER_SHARE
        member = random.choice(self.cluster.controllers if asks_controller else self.cluster.brokers)
        served = _served(member, asks_controller)
        if not served:
            return
        port = CONTROLLER_PORT if asks_controller else BROKER_PORT
        env = self.world.node_env(self.site.name)
        try:
            conn = await env.network.connect(member.name, port)
        except ConnectionLost:
            return
        core = ClientConnection(client_id=self.site.name)
        try:
            for _ in range(random.randint(1, REQUESTS_PER_CONNECTION)):
                api_key = random.choice(list(served))
                low, high = served[api_key]
                version = random.randint(low, high)
                if random.random() < TOO_NEW_PROBABILITY and api_key != ApiKey.PRODUCE:
                    api_key, version = ApiKey.API_VERSIONS, served[ApiKey.API_VERSIONS][1]
                await self._ask(core, conn, member, api_key, version)
        except (ConnectionLost, LocalProtocolError) as error:
            self.world.trace.record(self.world.now, self.site.name, "ask", error)
        finally:
            conn.close()

    async def _ask(
        self, core: ClientConnection, conn: Conn, member: Member, api_key: int, version: int
    ) -> None:
        """Send one random request and check the answer. Raises `ConnectionLost`, `SafetyViolation`, and
        `LocalProtocolError` for a request that cannot be sent.
        """
        request = draw_request(api_key, version, self.random, sorted(self.load.topics))
        left = memoryview(core.send(request, version))
        env = self.world.node_env(self.site.name)
        deadline = env.clock.monotonic() + ANSWER_SECONDS_MAX
        while left:
            left = left[conn.send([left]) :]
            if left:
                await self._wait(conn.writable, deadline)
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        what = f"{ApiKey(api_key).name} version {version} of {member.name}"
        while True:
            while (count := conn.recv_into(buffer)) is None:
                await self._wait(conn.readable, deadline)
            core.receive_data(buffer[:count])
            try:
                event = core.next_event()
            except RemoteProtocolError as error:
                if not count:
                    # The node has ended or has closed the connection in the middle of an answer.
                    raise ConnectionLost(f"{what}: {error}") from error
                raise SafetyViolation(
                    f"ask: {what} returned an answer that cannot be decoded: {error}"
                ) from error
            if event is NEED_DATA:
                continue
            if isinstance(event, ConnectionClosed):
                raise ConnectionLost("the node closed the connection")
            assert isinstance(event, ResponseReceived)
            check_answer(api_key, what, event.response)
            self.done += 1
            return

    async def _wait(self, until: Any, deadline: float) -> None:
        env = self.world.node_env(self.site.name)
        with env.clock.timeout_at(deadline) as waiting:
            await until()
        if waiting.expired:
            raise ConnectionLost("no answer in time")


def check_answer(api_key: int, what: str, answer: Structure) -> None:
    """Check that a correct node may send the error codes of an answer. Raises `SafetyViolation`."""
    for code in error_codes(answer):
        try:
            known = ErrorCode(code)
        except ValueError:
            raise SafetyViolation(
                f"ask: {what} returned the error code {code}, which Kafka does not have"
            ) from None
        if known is ErrorCode.UNKNOWN_SERVER_ERROR and api_key not in MAY_NOT_KNOW:
            raise SafetyViolation(f"ask: {what} returned UNKNOWN_SERVER_ERROR: {answer}")


def _served(member: Member, by_controller: bool) -> Mapping[int, tuple[int, int]]:
    """Return the versions that the node advertises on this kind of listener; empty if it is down."""
    if not member.serves() or member.node is None:
        return {}
    for services in member.node.services:
        table: ApiTable = services.table
        if by_controller == (ApiKey.PRODUCE not in table.advertised):
            advertised = table.advertised
            return (
                {key: advertised[key] for key in sorted(CONTROLLER_ASKED) if key in advertised}
                if by_controller
                else {key: advertised[key] for key in sorted(advertised)}
            )
    return {}
