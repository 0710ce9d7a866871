"""How requests get a session: without a login, or by `logins`. PORTED."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from odradek.console.http.messages import Request
from odradek.console.sessions.session import Session
from odradek.console.sessions.visits import Visit
from odradek.console.shapes.view_errors import ViewError

__all__ = ["Door", "OpenDoor"]


class Door(Protocol):
    """Lets requests in."""

    @property
    def needs_login(self) -> bool:
        """True if users log in."""

    def visit_of(self, request: Request) -> Visit | None:
        """Return the visit of a request; None if its user has to log in."""

    async def mechanisms(self) -> Sequence[str]:
        """Return the mechanisms by which users can log in, the best first."""

    def certificate_user(self, request: Request) -> str | None:
        """Return the user for whom the certificate of a request's connection stands; None if nobody can log in by one."""

    async def log_in(self, request: Request) -> str:
        """Log a user in. Return the value of the header Set-Cookie. Raises `ViewError`."""

    async def log_out(self, request: Request) -> str:
        """Log a user out. Return the value of the header Set-Cookie."""


class OpenDoor:
    """The door of a console without logins: all requests belong to the same visit."""

    needs_login = False

    def __init__(self, session: Session) -> None:
        self._visit = Visit(session)

    def visit_of(self, request: Request) -> Visit | None:
        return self._visit

    async def mechanisms(self) -> Sequence[str]:
        return ()

    def certificate_user(self, request: Request) -> str | None:
        return None

    async def log_in(self, request: Request) -> str:
        raise ViewError(404, "NO_LOGINS", "this cluster has no logins")

    async def log_out(self, request: Request) -> str:
        raise ViewError(404, "NO_LOGINS", "this cluster has no logins")

    def close(self) -> None:
        """Close the clients of the session."""
        self._visit.session.close()
