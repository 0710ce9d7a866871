"""Reports to systemd that the node has started, that its event loop turns, and that it stops: sd_notify(3). SHELL.

systemd passes the address of a Unix socket in `NOTIFY_SOCKET`. With `WatchdogSec=` it also passes `WATCHDOG_USEC`. If it
hears nothing for so long, it ends the process by SIGABRT. With `Restart=on-failure` it starts the process again. The words
come from a task on the event loop. So they end when the loop stands still.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from odradek.env.ports import Clock, Log

__all__ = ["ServiceManager"]

SHARE_OF_WATCHDOG = 3
"""Words per period of the watchdog, so that a late or lost word does no harm."""
_MICROSECONDS = 1_000_000


class ServiceManager:
    """The service manager that has started this process, or nobody."""

    def __init__(self, environment: Mapping[str, str], log: Log) -> None:
        """Read the address and the period of the watchdog from the environment."""
        self._log = log
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self.watchdog_seconds = _watchdog_seconds(environment) if self._address else None
        """The time after which systemd takes a silent process for hung; None if it has no watchdog."""

    def send(self, words: str) -> bool:
        """Send a state such as `READY=1`. Returns True if a service manager has taken it."""
        if not self._address:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                # A full queue must not block the event loop.
                channel.setblocking(False)
                channel.sendto(words.encode(), self._address)
        except OSError as error:
            self._log.warning("service_manager.not_reached", words=words, error=error.strerror or str(error))
            return False
        return True

    async def feed_watchdog(self, clock: Clock) -> None:
        """Send a sign of life from the event loop, three times in each period. Return at once if there is no watchdog,
        else only by cancellation.
        """
        if self.watchdog_seconds is None:
            return
        while True:
            self.send("WATCHDOG=1")
            await clock.sleep_until(clock.monotonic() + self.watchdog_seconds / SHARE_OF_WATCHDOG)


def _address(text: str) -> str:
    """Return the address as the socket module takes it: `@` stands for the zero byte of an abstract address."""
    return f"\0{text[1:]}" if text.startswith("@") else text


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """Return the watchdog's period; None if it watches another process, or none."""
    try:
        period = int(environment.get("WATCHDOG_USEC", "0"))
        process_id = int(environment.get("WATCHDOG_PID", "0") or 0)
    except ValueError:
        return None
    return period / _MICROSECONDS if period > 0 and process_id in (0, os.getpid()) else None
