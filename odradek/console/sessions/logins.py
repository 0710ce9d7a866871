"""Logins: from a name and a password, or a token, to a session whose clients have exactly these credentials. PORTED.

The console knows no users. It connects to the cluster with what the browser has sent. If the brokers let it in, a random
cookie stands for the session. Sessions with the same credentials share their clients and their answers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import attrs

from odradek.client.errors import AuthenticationFailed
from odradek.console.http.messages import Request
from odradek.console.sessions.session import Session
from odradek.console.sessions.session_table import (
    FAILURES_MAX,
    FAILURES_OF_USER_MAX,
    FailedLogins,
    SessionTable,
)
from odradek.console.sessions.visits import Visit
from odradek.console.shapes.view_errors import ViewError, view_error_of
from odradek.env.ports import Env, Event, Log, Workers
from odradek.security.handshakes import network_of
from odradek.wire.errors import ErrorCode, KafkaError

__all__ = ["COOKIE", "MECHANISMS", "Logins"]

COOKIE = "odradek-console"
"""The name of the cookie begins so, and ends with the listener's port. Browsers send a cookie to all ports of a host."""
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")
"""The mechanisms of a login, the best first."""
_TOKEN = "OAUTHBEARER"
_CHARACTERS_MAX = 16 * 1024
_AT_ONCE_MAX = 8
_AT_ONCE_OF_NETWORK_MAX = 2
MECHANISMS_SECONDS = 60.0
SILENCE_SECONDS = 5.0
"""While all brokers are silent, they are asked again after this time."""
_LAST_SECOND = 1 << 40
"""The greatest time that is computed with, in seconds since 1970."""


@attrs.define(eq=False)
class _Account:
    """The clients of some credentials, and how many sessions use them."""

    key: bytes
    session: Session
    users: int = 0


@attrs.frozen(eq=False)
class _Entry:
    """What a cookie stands for."""

    account: _Account
    visit: Visit


@attrs.frozen
class _Credentials:
    """What a browser has sent. Exactly one of password and token is given."""

    mechanism: str
    user: str | None
    password: str | None = attrs.field(repr=False)
    token: str | None = attrs.field(repr=False)

    @property
    def key(self) -> bytes:
        """A digest that is the same for the same credentials."""
        parts = (self.mechanism, self.user or "", self.password or "", self.token or "")
        return hashlib.sha256(json.dumps(parts).encode()).digest()

    @property
    def shown_user(self) -> str | None:
        """The name to show: for a token the subject that it claims, which the brokers have verified."""
        if self.token is None:
            return self.user
        subject = _claims(self.token).get("sub")
        return subject if isinstance(subject, str) else None

    @property
    def owner(self) -> object:
        """What counts as one user. A new token of the same subject is no other one."""
        return (self.token is not None, self.shown_user or self.key)

    @property
    def expires_at(self) -> float:
        """The end of the token in seconds since 1970, as it claims; infinite if there is none."""
        expiry = None if self.token is None else _claims(self.token).get("exp")
        if isinstance(expiry, bool) or not isinstance(expiry, int | float) or expiry != expiry:
            return math.inf
        return float(max(0, min(expiry, _LAST_SECOND)))

    def properties(self) -> Mapping[str, object]:
        """Return the keys of clients that log in with these credentials."""
        if self.token is not None:
            token = self.token
            return {
                "sasl.mechanism": _TOKEN,
                "odradek.sasl.oauthbearer.token.callback": lambda: token,
            }
        return {
            "sasl.mechanism": self.mechanism,
            "odradek.sasl.username": self.user,
            "odradek.sasl.password": self.password,
        }


def _claims(token: str) -> Mapping[str, object]:
    """Read the claims of a JSON Web Token (RFC 7519), without a check; empty if it is none."""
    parts = token.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (IndexError, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _may_be_sent(text: str) -> bool:
    """True if a client can send this text. JSON may have halves of characters (lone surrogates), which no encoding has."""
    return 0 < len(text) <= _CHARACTERS_MAX and not any("\ud800" <= each <= "\udfff" for each in text)


class Logins:
    """The sessions of a console whose cluster asks for logins."""

    def __init__(
        self,
        open_session: Callable[[Mapping[str, object], str | None, str], Session],
        *,
        port: int,
        is_encrypted: bool,
        find_mechanisms: Callable[[], Sequence[str]],
        new_secret: Callable[[], str],
        env: Env,
        workers: Workers,
        log: Log,
    ) -> None:
        """`open_session` makes the session of the keys of a login, a name and a mechanism, or raises `ValueError`. `find_mechanisms` asks a broker, in a worker.
        `new_secret` makes a text that nobody can guess.
        """
        self._open_session = open_session
        self._cookie_name = f"{COOKIE}-{port}"
        self._is_encrypted = is_encrypted
        self._find_mechanisms = find_mechanisms
        self._new_secret = new_secret
        self._clock = env.clock
        self._workers = workers
        self._log = log
        self._table: SessionTable[_Entry] = SessionTable()
        self._accounts: dict[bytes, _Account] = {}
        self._failed_networks = FailedLogins(FAILURES_MAX)
        self._failed_users = FailedLogins(FAILURES_OF_USER_MAX)
        self._trying: Counter[str] = Counter()
        self._new_event = env.event
        self._asking: Event | None = None
        """Set when the question for mechanisms that runs now has its answer."""
        self._mechanisms: Sequence[str] = ()
        self._mechanisms_at = float("-inf")

    needs_login = True

    def statistics(self) -> dict[str, int]:
        """Return the numbers of sessions, and of accounts whose clients are open."""
        return {"sessions": len(self._table), "accounts": len(self._accounts)}

    def visit_of(self, request: Request) -> Visit | None:
        """Return the visit of a request; None if its user has to log in."""
        secret = request.cookie(self._cookie_name)
        if secret is None:
            return None
        entry = self._table.find(secret, self._clock.monotonic())
        return None if entry is None else entry.visit

    async def mechanisms(self) -> Sequence[str]:
        """Return the mechanisms by which users can log in, the best first; empty if no broker answers."""
        kept = MECHANISMS_SECONDS if self._mechanisms else SILENCE_SECONDS
        if self._clock.monotonic() - self._mechanisms_at <= kept:
            return self._mechanisms
        if self._asking is not None:
            # Strangers may ask, too: one question at a time is enough for all.
            await self._asking.wait()
            return self._mechanisms
        self._asking = self._new_event()
        try:
            offered = await self._workers.run(self._find_mechanisms)
            self._mechanisms = [each for each in MECHANISMS if each in offered]
        finally:
            self._mechanisms_at = self._clock.monotonic()
            self._asking.set()
            self._asking = None
        return self._mechanisms

    async def log_in(self, request: Request) -> str:
        """Log a user in. Return the value of the header Set-Cookie. Raises `ViewError`."""
        network = network_of(request.peer)
        self._refuse_early(self._failed_networks, network)
        if self._trying.total() >= _AT_ONCE_MAX or self._trying[network] >= _AT_ONCE_OF_NETWORK_MAX:
            raise ViewError(429, "TOO_MANY_LOGINS", "too many logins at once: try again in a moment")
        self._trying[network] += 1
        try:
            credentials = await self._credentials(request)
            if credentials.user is not None:
                self._refuse_early(self._failed_users, credentials.user)
            account = await self._account(credentials, request.peer)
        finally:
            self._trying[network] -= 1
            if not self._trying[network]:
                del self._trying[network]
        secret, now = self._new_secret(), self._clock.monotonic()
        ended = self._table.open(
            secret,
            _Entry(account, Visit(account.session)),
            now,
            owner=credentials.owner,
            ends_at=now + credentials.expires_at - self._clock.wall_ms() / 1000,
        )
        known = self._close(request)
        await self._release([*ended, *known])
        self._log.info(
            "console.login", user=credentials.shown_user, mechanism=credentials.mechanism, peer=request.peer
        )
        return self._cookie(secret)

    async def log_out(self, request: Request) -> str:
        """Log a user out. Return the value of the header Set-Cookie that removes the cookie."""
        await self._release(self._close(request))
        return f"{self._cookie('')}; Max-Age=0"

    async def expire(self) -> None:
        """Close the sessions that nobody uses any more."""
        await self._release(self._table.expire(self._clock.monotonic()))

    def close(self) -> None:
        """Close the clients of all sessions."""
        for account in self._accounts.values():
            account.session.close()
        self._accounts.clear()

    def _refuse_early(self, failed: FailedLogins, key: str) -> None:
        """Raise `ViewError` if too many logins of this key have failed."""
        wait = failed.wait_seconds(key, self._clock.monotonic())
        if wait > 0:
            raise ViewError(
                429, "TOO_MANY_LOGINS", f"too many logins have failed: try again in {wait:.0f} seconds"
            )

    def _close(self, request: Request) -> Sequence[_Entry]:
        """Close the session of a request's cookie. Return what has ended: at most one."""
        secret = request.cookie(self._cookie_name)
        entry = None if secret is None else self._table.close(secret)
        return () if entry is None else (entry,)

    def _cookie(self, secret: str) -> str:
        secure = "; Secure" if self._is_encrypted else ""
        return f"{self._cookie_name}={secret}; Path=/; HttpOnly; SameSite=Strict{secure}"

    async def _credentials(self, request: Request) -> _Credentials:
        if (request.header("content-type") or "").partition(";")[0].strip().lower() != "application/json":
            raise ViewError(415, "INVALID_LOGIN", "a login is a JSON object, with the type application/json")
        try:
            found = json.loads(request.body)
        except (ValueError, RecursionError) as error:
            raise ViewError(400, "INVALID_LOGIN", "a login is a JSON object") from error
        given = found if isinstance(found, dict) else {}
        texts = {}
        for name in ("mechanism", "user", "password", "token"):
            value = given.get(name)
            if value is not None and not (isinstance(value, str) and _may_be_sent(value)):
                raise ViewError(
                    400, "INVALID_LOGIN", f"{name} is a text of at most {_CHARACTERS_MAX} characters"
                )
            texts[name] = value
        if (texts["user"] is None) is not (texts["password"] is None):
            raise ViewError(400, "INVALID_LOGIN", "a login has a user with a password, or a token")
        if (texts["user"] is None) is (texts["token"] is None):
            raise ViewError(400, "INVALID_LOGIN", "a login has either a user with a password, or a token")
        return _Credentials(
            await self._mechanism(texts["mechanism"], has_token=texts["token"] is not None),
            texts["user"],
            texts["password"],
            texts["token"],
        )

    async def _mechanism(self, wanted: str | None, *, has_token: bool) -> str:
        offered = [each for each in await self.mechanisms() if (each == _TOKEN) is has_token]
        if not self._mechanisms:
            raise ViewError(502, "BROKER_UNAVAILABLE", "no broker answers, so nobody can log in now")
        if not offered or (wanted is not None and wanted not in offered):
            raise ViewError(
                400,
                "UNSUPPORTED_SASL_MECHANISM",
                f"the cluster lets users in by {', '.join(self._mechanisms)}",
            )
        return wanted or offered[0]

    async def _account(self, credentials: _Credentials, peer: str) -> _Account:
        """Return the account of these credentials with one user more, after the brokers have let it in. Raises
        `ViewError`.
        """
        try:
            made = await self._workers.run(lambda: self._tried(credentials))
        except Exception as error:
            if isinstance(error, AuthenticationFailed) or (
                isinstance(error, KafkaError) and error.code is ErrorCode.SASL_AUTHENTICATION_FAILED
            ):
                self._failed_networks.add(network_of(peer), self._clock.monotonic())
                if credentials.user is not None:
                    self._failed_users.add(credentials.user, self._clock.monotonic())
                self._log.warning("console.login_refused", user=credentials.shown_user, peer=peer)
                raise ViewError(
                    401, "AUTHENTICATION_FAILED", "the cluster does not let this user in"
                ) from None
            found = view_error_of(error)
            if found is None:
                raise
            raise found from None
        known = self._accounts.get(credentials.key)
        if known is not None:
            known.users += 1
            await self._workers.run(made.close)
            return known
        account = self._accounts[credentials.key] = _Account(credentials.key, made, 1)
        return account

    def _tried(self, credentials: _Credentials) -> Session:
        """Open the clients, and ask a broker something that needs no right. Raises the errors of the client."""
        try:
            session = self._open_session(
                credentials.properties(), credentials.shown_user, credentials.mechanism
            )
        except ValueError as error:
            raise ViewError(400, "INVALID_LOGIN", f"these credentials cannot be sent: {error}") from None
        try:
            session.client.describe_cluster()
        except BaseException:
            session.close()
            raise
        return session

    async def _release(self, entries: Sequence[_Entry]) -> None:
        """End the streams of sessions that have ended. Close the clients of accounts that have no session any more."""
        for entry in entries:
            entry.visit.close()
        for account in [each.account for each in entries]:
            account.users -= 1
            if account.users <= 0 and self._accounts.pop(account.key, None) is not None:
                await self._workers.run(account.session.close)
