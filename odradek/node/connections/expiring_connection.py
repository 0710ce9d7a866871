"""A connection whose login lasts only so long (KIP-368): requests after that end it, unless the login was renewed."""

from __future__ import annotations

import struct

from odradek.node.connections.connection_loop import Connection
from wire.api import ApiKey
from wire.errors import RemoteProtocolError

__all__ = ["ExpiringConnection"]

_API_KEY = struct.Struct(">h")
_RENEWING = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class ExpiringConnection(Connection):
    """A connection that looks at the clock for each request, which others need not."""

    __slots__ = ()

    def _dispatch_frame(self, frame: memoryview, size: int) -> None:
        login = self.context.login
        assert login is not None, "only a login expires"
        is_renewal = _API_KEY.unpack_from(frame)[0] in _RENEWING
        if not is_renewal and (reason := login.refusal):
            raise RemoteProtocolError(reason)
        super()._dispatch_frame(frame, size)
        if is_renewal and login.is_refused:
            # The answer is on its way; the connection ends behind it.
            self.closing = True
