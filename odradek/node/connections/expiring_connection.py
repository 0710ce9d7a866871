"""A connection whose login has a limited lifetime (KIP-368): the first request after this lifetime ends the
connection, unless the login was renewed.

A refused renewal also ends the connection. The refusal is delayed, as at a first login. Otherwise a logged-in
user could try passwords of other users without a pause.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Any

from odradek.env.ports import ConnectionLost
from odradek.node.connections.connection_loop import Connection
from odradek.serving.api_table import ApiEntry
from odradek.serving.contract import Suspend
from odradek.wire.api import ApiKey
from odradek.wire.errors import RemoteProtocolError

__all__ = ["ExpiringConnection"]

_API_KEY = struct.Struct(">h")
_RENEWING = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class ExpiringConnection(Connection):
    """A connection that checks the time for each request, because its login may have expired."""

    __slots__ = ()

    def _dispatch_frame(self, frame: memoryview, size: int) -> None:
        login = self.context.login
        assert login is not None, "only a connection with a login can expire"
        is_renewal = _API_KEY.unpack_from(frame)[0] in _RENEWING
        if not is_renewal and (reason := login.refusal):
            raise RemoteProtocolError(reason)
        super()._dispatch_frame(frame, size)
        if is_renewal and login.is_refused and self.suspended is None:
            # The answer is queued already; the connection ends after it.
            self.closing = True

    def _answer(self, entry: ApiEntry, correlation_id: int, size: int, result: Any) -> None:
        login = self.context.login
        if login is not None and login.is_refused and login.refusal_delay_seconds > 0:
            result = Suspend(partial(self._later, result, login.refusal_delay_seconds))
        super()._answer(entry, correlation_id, size, result)

    async def _later(self, answer: Any, seconds: float) -> Any:
        clock = self.services.clock
        await clock.sleep_until(clock.monotonic() + seconds)
        return answer

    async def _run_suspended(self) -> None:
        await super()._run_suspended()
        login = self.context.login
        if login is not None and login.is_refused:
            raise ConnectionLost("this node refused the renewal of the login, and closed the connection")
