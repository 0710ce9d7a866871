"""The certificate of the console's listener is read again after its files have changed, and a broken one is not used."""

from __future__ import annotations

import attrs
import pytest

from odradek.console.http.listener_tls import RELOAD_SECONDS, ListenerTls
from odradek.env.ports import ConnectionLost
from odradek.env.real import RealClock, RealEnv
from odradek.env.tls_ports import TlsRefused
from tests.console.http.served import Lines


@attrs.define
class Files:
    """Stands for the TLS of a listener: what the next look at its files gives."""

    outcome: bool | TlsRefused = False
    looks: int = 0

    def reload(self, settings: object = None) -> bool:
        self.looks += 1
        if isinstance(self.outcome, TlsRefused):
            raise self.outcome
        return self.outcome

    def server_session(self) -> None:
        raise AssertionError("no handshake begins")


class Clock(RealClock):
    """A clock that the test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Refusing:
    """A connection that ends before its handshake."""

    peer_host = "127.0.0.1"

    async def readable(self) -> None:
        raise ConnectionLost("it has gone")


@pytest.mark.trio
async def test_files_are_looked_at_once_a_minute() -> None:
    """New connections look at the files, at most once a minute; a broken certificate leaves the old one in use."""
    env, log, files = RealEnv(), Lines(), Files()
    clock = Clock()
    env.clock = clock
    tls = ListenerTls(files, env, log)  # type: ignore[arg-type] # a part of it

    async def connect() -> None:
        with pytest.raises(ConnectionLost):
            await tls.handshake(Refusing())  # type: ignore[arg-type] # a part of it

    await connect()
    assert files.looks == 0
    for outcome, event in (
        (True, "console.certificate_reloaded"),
        (TlsRefused("no key"), "console.certificate_kept"),
    ):
        clock.now += RELOAD_SECONDS
        files.outcome = outcome
        await connect()
        await connect()
        assert log.events[-1] == event
    assert files.looks == 2
