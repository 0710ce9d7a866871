"""The console as a process: opens its nursery, and ends when it is idle, by a signal, or with its node. SHELL."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

import trio

from odradek.console.application import Application
from odradek.console.http.http_server import HttpServer
from odradek.console.http.page_files import read_page_files
from odradek.console.http.request_rules import SECURITY_HEADERS, HostRules
from odradek.console.sessions.session import Session
from odradek.console.settings import ConsoleSettings
from odradek.console.streams.stream_responses import STREAMS_MAX, StreamResponses
from odradek.env.ports import Log
from odradek.env.real import RealEnv
from odradek.env.real_net import TcpListener
from odradek.node.logging import make_logger

__all__ = ["run_console"]

VIEW_THREADS = 8
_IDLE_CHECKS = 10


def run_console(
    settings: ConsoleSettings, listening: socket.socket, started: Callable[[int], None] | None = None
) -> None:
    """Serve the console on a listening socket until SIGINT, SIGTERM, or until it was idle for long enough.

    `started` is called with the port.
    """
    trio.run(_serve, settings, listening, started)


async def _serve(
    settings: ConsoleSettings, listening: socket.socket, started: Callable[[int], None] | None
) -> None:
    env = RealEnv()
    log = make_logger(env.clock, part="console")
    session = Session({"bootstrap.servers": settings.bootstrap, **settings.client})
    try:
        async with trio.open_nursery() as tasks:
            application = Application(
                hosts=HostRules.of_listener(settings.host, settings.hosts),
                pages=read_page_files(),
                session=lambda request: session,
                streams=StreamResponses(
                    clock=env.clock,
                    workers=env.new_workers(STREAMS_MAX),
                    new_event=env.event,
                    call_soon=trio.lowlevel.current_trio_token().run_sync_soon,
                    tasks=tasks,
                    log=log,
                ),
                clock=env.clock,
                workers=env.new_workers(VIEW_THREADS),
                new_event=env.event,
                log=log,
            )
            listener = TcpListener(listening)
            server = HttpServer(
                listener,
                application.answer,
                clock=env.clock,
                tasks=tasks,
                log=log,
                always=SECURITY_HEADERS,
            )
            tasks.start_soon(_end_by_signal, tasks.cancel_scope, log)
            if settings.idle_seconds is not None:
                tasks.start_soon(_end_when_idle, server, settings.idle_seconds, tasks.cancel_scope, log)
            if started is not None:
                started(listener.port)
            await server.accept_loop()
    finally:
        session.close()


async def _end_by_signal(scope: trio.CancelScope, log: Log) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            log.info("console.stopping", signal=signal.Signals(number).name)
            scope.cancel()


async def _end_when_idle(server: HttpServer, seconds: float, scope: trio.CancelScope, log: Log) -> None:
    while True:
        await trio.sleep(seconds / _IDLE_CHECKS)
        if not server.is_busy and trio.current_time() - server.last_active > seconds:
            log.info("console.idle", seconds=seconds)
            scope.cancel()
