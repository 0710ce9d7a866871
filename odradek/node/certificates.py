"""The certificates of a node's listeners: read at the start, and again whenever files or settings change. PORTED.

New connections get the new certificate; open connections keep the old one. A broken file is reported by one
log line and a counter, and the last good keys and certificates stay in use. Files are checked every second,
so it does not matter how they are replaced. Dynamic values (`listener.name.NAME.ssl.keystore.location` and
the like) apply as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from odradek.env.ports import Env, Event, Log, TaskGroup
from odradek.env.tls_ports import OpenTls, Tls, TlsRefused, TlsSettings
from odradek.metadata_quorum.config.config_defs import ConfigError
from odradek.node.configuration.listener_security import LISTENER_PREFIX, tls_settings
from odradek.node.configuration.metrics_config import METRICS
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.directories import NodeCannotStart

__all__ = ["Certificates"]

WATCH_SECONDS = 1.0
"""Seconds between two checks of the files."""
WARN_DAYS = 30
DAY_SECONDS = 86_400
_SSL = "ssl."


@attrs.define
class _Listener:
    """The TLS state of one listener."""

    tls: Tls
    wanted: TlsSettings
    """The settings that result from the newest configuration values."""
    reloads: int = 0
    failures: int = 0
    warned_at: float = float("-inf")
    """The wall-clock time, in seconds, of the last warning that the certificate will expire soon."""


class Certificates:
    """The keys and certificates of a node's listeners."""

    def __init__(self, config: NodeConfig, env: Env, log: Log, open_tls: OpenTls | None) -> None:
        self._config = config
        self._env = env
        self._log = log
        self._open_tls = open_tls
        self._own = frozenset((*(each.name for each in config.listeners), METRICS))
        self._listeners: dict[str, _Listener] = {}
        self._changed: Event = env.event()

    async def open(self, tasks: TaskGroup) -> None:
        """Read keys and certificates, and start the task that reads them again after changes. Raises
        `NodeCannotStart`.
        """
        for name, security in self._config.security.items():
            if security.tls is not None:
                if self._open_tls is None:
                    raise NodeCannotStart(f"listener {name} needs TLS, which this process does not have")
                try:
                    tls = await self._env.workers.run(self._open_tls, security.tls)
                except TlsRefused as error:
                    raise NodeCannotStart(f"listener {name}: {error}") from error
                self._listeners[name] = _Listener(tls, security.tls)
        if self._listeners:
            self._warn_of_ends()
            tasks.start_soon(self._watch, name="certificates")

    def tls(self, listener: str) -> Tls | None:
        """Return the TLS of a listener; None if the listener has no TLS."""
        found = self._listeners.get(listener)
        return None if found is None else found.tls

    def apply(self, dynamic: Mapping[str, str]) -> None:
        """Make new settings from the broker's dynamic values. The task that reads the files applies them soon."""
        for name, listener in self._listeners.items():
            try:
                listener.wanted = self._settings(name, dynamic)
            except ConfigError as error:
                self._log.error("config.not_applied", listener=name, reason=str(error))
        self._changed.set()

    async def check(self, dynamic: Mapping[str, str]) -> str:
        """Return the reason why these dynamic values cannot be applied; empty if they can."""
        for name, listener in self._listeners.items():
            try:
                settings = self._settings(name, dynamic)
                if settings != listener.wanted:
                    await self._env.workers.run(listener.tls.check, settings)
            except (ConfigError, TlsRefused) as error:
                return str(error)
        return ""

    def _settings(self, name: str, dynamic: Mapping[str, str]) -> TlsSettings:
        """Make a listener's TLS settings from the properties file and the dynamic values. Raises `ConfigError`."""
        prefix = f"{LISTENER_PREFIX}{name.lower()}.{_SSL}"
        changed = {key: text for key, text in dynamic.items() if key.startswith(prefix)}
        protocol = self._config.security[name].protocol
        return tls_settings(name, protocol, {**self._config.explicit, **changed}, serves=name in self._own)

    async def _watch(self) -> None:
        clock = self._env.clock
        while True:
            with clock.timeout_at(clock.monotonic() + WATCH_SECONDS):
                await self._changed.wait()
            self._changed = self._env.event()
            for name, listener in self._listeners.items():
                await self._look(name, listener)
            self._warn_of_ends()

    async def _look(self, name: str, listener: _Listener) -> None:
        wanted = listener.wanted
        try:
            if await self._env.workers.run(listener.tls.reload, wanted):
                listener.reloads += 1
                listener.warned_at = float("-inf")
                self._log.info("tls.reloaded", listener=name)
        except TlsRefused as error:
            listener.failures += 1
            self._log.error("tls.not_reloaded", listener=name, reason=str(error))

    def _warn_of_ends(self) -> None:
        """Log a warning once a day for each certificate that expires within `WARN_DAYS`."""
        now = self._env.clock.wall_ms() / 1000
        for name, listener in self._listeners.items():
            ends_at = listener.tls.expires_at
            if ends_at is None or now < listener.warned_at + DAY_SECONDS:
                continue
            days = (ends_at - now) / DAY_SECONDS
            if days <= 0:
                self._log.warning("tls.certificate_ended", listener=name)
            elif days < WARN_DAYS:
                self._log.warning("tls.certificate_ends", listener=name, days_left=round(days, 1))
            else:
                continue
            listener.warned_at = now

    def statistics(self) -> dict[str, dict[str, float]]:
        """Return figures of each listener: the days until its certificate expires (if it has one), and the
        numbers of reloads and of refused changes.
        """
        now = self._env.clock.wall_ms() / 1000
        found: dict[str, dict[str, float]] = {}
        for name, listener in self._listeners.items():
            figures: dict[str, float] = {"reloads": listener.reloads, "failures": listener.failures}
            if listener.tls.expires_at is not None:
                figures["days_left"] = (listener.tls.expires_at - now) / DAY_SECONDS
            found[name] = figures
        return found
