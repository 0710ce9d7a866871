"""Logins: from a name and a password, or a token, to a session whose clients have exactly these credentials. PORTED.

The console knows no users. It connects to the cluster with what the browser has sent. If the brokers let it in, a random
cookie stands for the session. Sessions with the same credentials share their clients and their answers.

A user may also log in by the certificate of his connection. Then the console gets a delegation token for him (`grants.py`).
The cookie of such a session counts only on connections with the same certificate.
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
from odradek.console.http.messages import ClientCertificate, Request
from odradek.console.sessions.grants import CERTIFICATE, Grant, Grants
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
TOKENS_OF_USER_MAX = 20
"""The tokens of a user within a minute, after which he has to wait: the controllers write each of them down."""
TOKEN_TRIES_MAX = 20
TOKEN_PAUSE_SECONDS = 0.25
"""The pause before the next try with a token that the broker may not know yet."""
_LAST_SECOND = 1 << 40
"""The greatest time that is computed with, in seconds since 1970."""


@attrs.define(eq=False)
class _Account:
    """The clients of some credentials, and how many sessions use them."""

    key: bytes
    session: Session
    users: int = 0
    grant: Grant | None = None
    """The token of a user with a certificate. Each login has its own, so that the logout can expire it."""


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


def _document(request: Request) -> Mapping[str, object]:
    """Read the JSON object of a login. Raises `ViewError`."""
    if (request.header("content-type") or "").partition(";")[0].strip().lower() != "application/json":
        raise ViewError(415, "INVALID_LOGIN", "a login is a JSON object, with the type application/json")
    try:
        found = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise ViewError(400, "INVALID_LOGIN", "a login is a JSON object") from error
    return found if isinstance(found, dict) else {}


def _fits(entry: _Entry, request: Request) -> bool:
    """True if the connection of a request has the certificate of the session, or the session needs none."""
    grant, shown = entry.account.grant, request.certificate
    return grant is None or (shown is not None and shown.fingerprint == grant.certificate.fingerprint)


def _shown(certificate: ClientCertificate) -> str:
    """Return the name of a certificate's user: without the type, as in a login by password."""
    return (certificate.principal or certificate.name).removeprefix("User:")


def _silent() -> ViewError:
    return ViewError(502, "BROKER_UNAVAILABLE", "no broker answers, so nobody can log in now")


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
        self.grants: Grants | None = None
        """Makes the tokens of users with a certificate; None if nobody can log in by one."""
        self._table: SessionTable[_Entry] = SessionTable()
        self._accounts: dict[bytes, _Account] = {}
        self._failed_networks = FailedLogins(FAILURES_MAX)
        self._failed_users = FailedLogins(FAILURES_OF_USER_MAX)
        self._tokens = FailedLogins(TOKENS_OF_USER_MAX)
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
        return None if entry is None or not _fits(entry, request) else entry.visit

    def certificate_user(self, request: Request) -> str | None:
        """Return the user for whom the certificate of a request's connection stands; None if nobody can log in by one."""
        if self.grants is None or request.certificate is None:
            return None
        return _shown(request.certificate)

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
            given = _document(request)
            if "certificate" in given:
                return await self._log_in_by_certificate(request, given)
            credentials = await self._credentials(given)
            if credentials.user is not None:
                self._refuse_early(self._failed_users, credentials.user)
            account = await self._account(credentials, request.peer)
        finally:
            self._trying[network] -= 1
            if not self._trying[network]:
                del self._trying[network]
        seconds = credentials.expires_at - self._clock.wall_ms() / 1000
        return await self._opened(request, account, credentials.owner, seconds)

    async def _opened(self, request: Request, account: _Account, owner: object, seconds: float) -> str:
        """Open a session of this account, which ends after so many seconds at the latest. Return its cookie."""
        secret, now = self._new_secret(), self._clock.monotonic()
        entry = _Entry(account, Visit(account.session))
        ended = self._table.open(secret, entry, now, owner=owner, ends_at=now + seconds)
        known = self._close(request)
        await self._release([*ended, *known])
        session = account.session
        self._log.info("console.login", user=session.user, mechanism=session.mechanism, peer=request.peer)
        return self._cookie(secret)

    async def log_out(self, request: Request) -> str:
        """Log a user out. Return the value of the header Set-Cookie that removes the cookie."""
        await self._release(self._close(request))
        return f"{self._cookie('')}; Max-Age=0"

    async def expire(self) -> None:
        """Close the sessions that nobody uses any more, and renew the tokens of the others."""
        await self._release(self._table.expire(self._clock.monotonic()))
        for account in list(self._accounts.values()):
            if account.grant is not None and self.grants is not None and self.grants.is_due(account.grant):
                await self._renew(account, account.grant, self.grants)

    async def _renew(self, account: _Account, grant: Grant, grants: Grants) -> None:
        """Renew the token of an account. With another token, other clients take the place of its clients. If the user gets
        none any more, his session ends.
        """
        try:
            if not await grants.renew(grant):
                return
            fresh = await self._session_of(grant)
        except Exception as error:
            found = view_error_of(error)
            if found is None:
                raise
            self._log.warning("console.session_over", user=grant.principal, reason=found.sentence)
            entries = [each for each in self._table.values() if each.account is account]
            for each in entries:
                self._table.remove(each)
            await self._release(entries)
            return
        if self._accounts.get(account.key) is not account:
            # The user has logged out meanwhile.
            await self._workers.run(fresh.close)
            await grants.give_back(grant)
            return
        old, account.session = account.session, fresh
        for each in self._table.values():
            if each.account is account:
                each.visit.session = fresh
        await self._workers.run(old.close)

    def close(self) -> None:
        """Close the clients of all sessions, and expire their tokens."""
        for account in self._accounts.values():
            account.session.close()
        if self.grants is not None:
            self.grants.close()
        self._accounts.clear()

    def _refuse_early(self, failed: FailedLogins, key: str) -> None:
        """Raise `ViewError` if too many logins of this key have failed."""
        wait = failed.wait_seconds(key, self._clock.monotonic())
        if wait > 0:
            raise ViewError(
                429, "TOO_MANY_LOGINS", f"too many logins within a minute: try again in {wait:.0f} seconds"
            )

    def _close(self, request: Request) -> Sequence[_Entry]:
        """Close the session of a request's cookie. Return what has ended: at most one."""
        secret = request.cookie(self._cookie_name)
        if secret is None or self.visit_of(request) is None:
            return ()
        entry = self._table.close(secret)
        return () if entry is None else (entry,)

    def _cookie(self, secret: str) -> str:
        secure = "; Secure" if self._is_encrypted else ""
        return f"{self._cookie_name}={secret}; Path=/; HttpOnly; SameSite=Strict{secure}"

    async def _log_in_by_certificate(self, request: Request, given: Mapping[str, object]) -> str:
        """Log in the user for whom the connection's certificate stands. Return the value of the header Set-Cookie. Raises
        `ViewError`.
        """
        certificate, grants = request.certificate, self.grants
        if given != {"certificate": True}:
            raise ViewError(
                400, "INVALID_LOGIN", "a login by certificate is just that: the word is true, alone"
            )
        if grants is None:
            raise ViewError(400, "NO_CERTIFICATES", "the console lets nobody in by certificate")
        if certificate is None:
            raise ViewError(401, "NO_CERTIFICATE", "your browser has shown no certificate on this connection")
        offered = await self.mechanisms()
        if not offered:
            raise _silent()
        owner = certificate.principal or certificate.name
        self._refuse_early(self._tokens, owner)
        self._tokens.add(owner, self._clock.monotonic())
        try:
            grant = await grants.make(certificate, offered)
            session = await self._session_of(grant)
        except Exception as error:
            found = view_error_of(error)
            if found is None:
                raise
            self._log.warning("console.login_refused", user=owner, peer=request.peer, reason=found.sentence)
            raise found from None
        account = _Account(self._new_secret().encode(), session, 1, grant)
        self._accounts[account.key] = account
        return await self._opened(request, account, session.sharer, grants.ends_after(grant))

    async def _session_of(self, grant: Grant) -> Session:
        """Open the clients of a grant. All brokers get to know its token, each in its own time. Raises the errors of the
        client, and then gives the token back.
        """
        user, tries = _shown(grant.certificate), TOKEN_TRIES_MAX
        try:
            while True:
                try:
                    return await self._workers.run(self._checked, grant.properties(), user, CERTIFICATE)
                except AuthenticationFailed:
                    tries -= 1
                    if not tries:
                        raise
                await self._clock.sleep_until(self._clock.monotonic() + TOKEN_PAUSE_SECONDS)
        except BaseException:
            assert self.grants is not None, "a grant has its maker"
            await self.grants.give_back(grant)
            raise

    async def _credentials(self, given: Mapping[str, object]) -> _Credentials:
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
            raise _silent()
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
            made = await self._workers.run(
                self._checked, credentials.properties(), credentials.shown_user, credentials.mechanism
            )
        except Exception as error:
            if isinstance(error, AuthenticationFailed) or (
                isinstance(error, KafkaError) and error.code is ErrorCode.SASL_AUTHENTICATION_FAILED
            ):
                self._failed_networks.add(network_of(peer), self._clock.monotonic())
                if credentials.user is not None:
                    self._failed_users.add(credentials.user, self._clock.monotonic())
                self._log.warning("console.login_refused", user=credentials.shown_user, peer=peer)
                refused = "this token" if credentials.user is None else "this user with this password"
                raise ViewError(
                    401, "AUTHENTICATION_FAILED", f"the cluster does not let in {refused}"
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

    def _checked(self, keys: Mapping[str, object], user: str | None, mechanism: str) -> Session:
        """Open the clients, and ask a broker something that needs no right. Raises the errors of the client."""
        try:
            session = self._open_session(keys, user, mechanism)
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
                if account.grant is not None and self.grants is not None:
                    await self.grants.give_back(account.grant)
