"""A node logs in to another node, which may be of an older release or of Apache Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import attrs
import pytest

from odradek.env.ports import Buffer, Conn
from odradek.env.real import RealEnv
from odradek.security.dialing import SecuredNetwork
from odradek.security.handshakes import Handshakes
from odradek.security.sasl_client import Credentials
from odradek.wire.api_keys import ApiKey
from odradek.wire.framing.connection import RequestReceived, ServerConnection
from odradek.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from odradek.wire.messages.sasl_handshake import SaslHandshakeResponse


class OtherNode:
    """The other end of a connection, which accepts a PLAIN login in the versions that it serves."""

    peer_host = "other"
    peer_port = 0

    def __init__(self, version_max: int | None) -> None:
        self._keys = [] if version_max is None else [ApiVersion(ApiKey.SASL_AUTHENTICATE, 0, version_max)]
        self._wire = ServerConnection(1 << 20)
        self._answers = bytearray()
        self.versions: list[int] = []

    async def readable(self) -> None:
        """Return at once, since this connection is always readable."""

    async def writable(self) -> None:
        """Return at once, since this connection is always writable."""

    def send(self, chunks: Sequence[Buffer], more: bool = False) -> int:
        data = b"".join(chunks)
        self._wire.receive_data(data)
        while isinstance(event := self._wire.next_event(), RequestReceived):
            self._answers += b"".join(cast("list[bytes]", self._wire.send(self._answer(event))))
        return len(data)

    def _answer(self, event: RequestReceived) -> Any:
        if event.api_key == ApiKey.API_VERSIONS:
            return ApiVersionsResponse(api_keys=self._keys)
        if event.api_key == ApiKey.SASL_HANDSHAKE:
            return SaslHandshakeResponse(0, ["PLAIN"])
        self.versions.append(event.api_version)
        return SaslAuthenticateResponse()

    def recv_into(self, buffer: memoryview) -> int | None:
        count = min(len(buffer), len(self._answers))
        buffer[:count] = self._answers[:count]
        del self._answers[:count]
        return count or None

    def close(self) -> None:
        """Do nothing."""


@attrs.define
class Dialled:
    """An environment in which each connection reaches the same node."""

    node: OtherNode
    clock: Any
    workers: Any

    @property
    def network(self) -> Any:
        return self

    async def connect(self, host: str, port: int, *, address: str | None = None) -> Conn:
        return cast("Conn", self.node)

    def new_uuid(self) -> bytes:
        return bytes(16)


@pytest.mark.trio
@pytest.mark.parametrize(("version_max", "asked"), [(None, 0), (0, 0), (1, 1), (2, 2), (7, 2)])
async def test_a_login_takes_a_version_that_the_other_node_serves(
    version_max: int | None, asked: int
) -> None:
    """A node asks for ApiVersions before its login, as Kafka does, and uses a version that the other node serves.

    Otherwise rolling upgrades would fail.
    """
    real, node = RealEnv(), OtherNode(version_max)
    env = cast("Any", Dialled(node, real.clock, real.workers))
    network = SecuredNetwork(env, None, Credentials("PLAIN", "broker", "secret"), Handshakes(real))
    await network.connect("other", 9093)
    assert node.versions == [asked]
