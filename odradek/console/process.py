"""The console as a process: opens its nursery, and ends when it is idle, by a signal, or with its node. SHELL."""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Callable, Mapping, Sequence

import trio

from odradek.cli.health.probing import probe
from odradek.client.core.bootstrap import parse_bootstrap
from odradek.client.core.client_keys import AdminSettings
from odradek.console.application import Application
from odradek.console.http.http_server import HttpServer
from odradek.console.http.listener_tls import ListenerTls
from odradek.console.http.page_files import read_page_files
from odradek.console.http.request_rules import SECURITY_HEADERS, HostRules
from odradek.console.sessions.doors import OpenDoor
from odradek.console.sessions.grants import Grants
from odradek.console.sessions.logins import Logins
from odradek.console.sessions.session import Session
from odradek.console.sessions.shared_parts import shared_parts
from odradek.console.sessions.token_maker import TokenMaker
from odradek.console.settings import ConsoleSettings, SettingsRefused
from odradek.console.stream_responses import STREAMS_MAX, StreamResponses
from odradek.env.ports import Log, TaskGroup, Workers
from odradek.env.real import RealEnv
from odradek.env.real_net import TcpListener
from odradek.env.real_tls import open_tls
from odradek.env.tls_ports import TlsRefused
from odradek.metadata_quorum.config.config_defs import ConfigError
from odradek.node.configuration.console_config import AS_SASL, CONSOLE, TOKENS_PREFIX
from odradek.node.configuration.listener_security import principal_rules, tls_settings
from odradek.node.logging import make_logger

__all__ = ["encryption_of", "make_application", "open_door", "run_console"]

VIEW_THREADS = 8
SECRET_BYTES = 32
PROBE_SECONDS = 3.0
EXPIRE_SECONDS = 5.0
_IDLE_CHECKS = 10


def run_console(
    settings: ConsoleSettings, listening: socket.socket, started: Callable[[int], None] | None = None
) -> None:
    """Serve the console on a listening socket until SIGINT, SIGTERM, or until it was idle for long enough.

    `started` is called with the port. Raises `SettingsRefused`.
    """
    trio.run(_serve, settings, listening, started)


async def _serve(
    settings: ConsoleSettings, listening: socket.socket, started: Callable[[int], None] | None
) -> None:
    env = RealEnv()
    log: Log = make_logger(env.clock, node="console" if settings.node_id is None else settings.node_id)
    listener = TcpListener(listening)
    encryption = encryption_of(settings, env, log)
    door = open_door(settings, env, listener.port, log)
    try:
        async with trio.open_nursery() as tasks:
            application = make_application(settings, env, door, tasks, log)
            server = HttpServer(
                listener,
                application.answer,
                clock=env.clock,
                tasks=tasks,
                log=log,
                encryption=encryption,
                always=SECURITY_HEADERS,
            )
            tasks.start_soon(_end_by_signal, tasks.cancel_scope, log)
            if settings.idle_seconds is not None:
                tasks.start_soon(_end_when_idle, server, settings.idle_seconds, tasks.cancel_scope, log)
            if isinstance(door, Logins):
                tasks.start_soon(_expire_sessions, door)
            if started is not None:
                started(listener.port)
            await server.accept_loop()
    finally:
        door.close()


def open_door(settings: ConsoleSettings, env: RealEnv, port: int, log: Log) -> OpenDoor | Logins:
    """Make the door of a console on this port: with logins, if the cluster asks for them.

    Raises `SettingsRefused`.
    """
    try:
        shared, left = shared_parts(settings.client, log, settings.audit)
    except ValueError as error:
        raise SettingsRefused(str(error)) from None
    properties = {"bootstrap.servers": settings.bootstrap, **left}
    workers = env.new_workers(VIEW_THREADS)
    if not settings.needs_login:
        return OpenDoor(Session(properties, shared=shared))
    logins = Logins(
        lambda login, user, mechanism: Session({**properties, **login}, user, mechanism, shared),
        port=port,
        is_encrypted=settings.tls is not None,
        find_mechanisms=lambda: find_mechanisms(settings),
        new_secret=lambda: secrets.token_urlsafe(SECRET_BYTES),
        env=env,
        workers=workers,
        log=log,
    )
    if shared.for_tokens:
        logins.grants = _grants({**properties, **shared.for_tokens}, settings, env, workers, log)
    return logins


def _grants(
    properties: Mapping[str, str], settings: ConsoleSettings, env: RealEnv, workers: Workers, log: Log
) -> Grants:
    """Make what logs users in by certificate. `properties` are those of the console's own user. Raises `SettingsRefused`."""
    try:
        AdminSettings.from_properties(properties).client_config(fail_fast=True)
    except ValueError as error:
        raise SettingsRefused(f"the keys {TOKENS_PREFIX}* cannot be used: {error}") from None
    maker = TokenMaker(properties, frozenset(settings.super_users))
    return Grants(maker, workers, env.clock, log)


def make_application(
    settings: ConsoleSettings, env: RealEnv, door: OpenDoor | Logins, tasks: TaskGroup, log: Log
) -> Application:
    """Make the application with its threads. It must be called on the event loop."""
    streams = StreamResponses(
        clock=env.clock,
        workers=env.new_workers(STREAMS_MAX),
        new_event=env.event,
        call_soon=trio.lowlevel.current_trio_token().run_sync_soon,
        tasks=tasks,
        log=log,
    )
    return Application(
        hosts=HostRules.of_listener(settings.host, settings.hosts),
        pages=read_page_files(),
        door=door,
        streams=streams,
        env=env,
        workers=env.new_workers(VIEW_THREADS),
        tasks=tasks,
        log=log,
    )


def encryption_of(settings: ConsoleSettings, env: RealEnv, log: Log) -> ListenerTls | None:
    """Make the TLS of the listener; None for plain HTTP. Raises `SettingsRefused`."""
    if settings.tls is None:
        return None
    try:
        wanted = tls_settings(CONSOLE, AS_SASL, settings.tls, serves=True)
        return ListenerTls(open_tls(wanted), env, log, principal_rules(CONSOLE, settings.tls))
    except (ConfigError, TlsRefused) as error:
        raise SettingsRefused(f"the console's certificate cannot be used: {error}") from error


def find_mechanisms(settings: ConsoleSettings) -> Sequence[str]:
    """Ask the brokers how users log in. Return the names of mechanisms; an empty list means that all are silent. It blocks."""
    has_tls = settings.client.get("security.protocol", "").upper().endswith("SSL")
    for host, port in parse_bootstrap(settings.bootstrap):
        found = probe(host, port, PROBE_SECONDS, tls_first=has_tls)
        if found.mechanisms:
            return found.mechanisms
    return ()


async def _end_by_signal(scope: trio.CancelScope, log: Log) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            log.info("console.stopping", signal=signal.Signals(number).name)
            scope.cancel()


async def _end_when_idle(server: HttpServer, seconds: float, scope: trio.CancelScope, log: Log) -> None:
    while True:
        await trio.sleep(seconds / _IDLE_CHECKS)
        if not server.is_busy and server.idle_seconds > seconds:
            log.info("console.idle", seconds=seconds)
            scope.cancel()


async def _expire_sessions(logins: Logins) -> None:
    while True:
        await trio.sleep(EXPIRE_SECONDS)
        await logins.expire()
