"""How requests get a session: without a login, or by `logins`. PORTED."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from odradek.console.http.messages import Request
from odradek.console.sessions.session import Session
from odradek.console.shapes.view_errors import ViewError

__all__ = ["Door", "OpenDoor"]


class Door(Protocol):
    """Lets requests in."""

    @property
    def needs_login(self) -> bool:
        """True if users log in."""

    def session_of(self, request: Request) -> Session | None:
        """Return the session of a request; None if its user has to log in."""

    async def mechanisms(self) -> Sequence[str]:
        """Return the mechanisms by which users can log in, the best first."""

    async def log_in(self, request: Request) -> str:
        """Log a user in. Return the value of the header Set-Cookie. Raises `ViewError`."""

    async def log_out(self, request: Request) -> str:
        """Log a user out. Return the value of the header Set-Cookie."""


class OpenDoor:
    """The door of a console without logins: all requests have the same session."""

    needs_login = False

    def __init__(self, session: Session) -> None:
        self._session = session

    def session_of(self, request: Request) -> Session | None:
        return self._session

    async def mechanisms(self) -> Sequence[str]:
        return ()

    async def log_in(self, request: Request) -> str:
        raise ViewError(404, "NO_LOGINS", "this cluster has no logins")

    async def log_out(self, request: Request) -> str:
        raise ViewError(404, "NO_LOGINS", "this cluster has no logins")

    def close(self) -> None:
        """Close the clients of the session."""
        self._session.close()
