"""Logins at the metrics page: users of the cluster, by HTTP's Basic scheme (RFC 7617) within TLS. PORTED.

A password is checked against the user's SCRAM keys. This takes 2 to 15 ms of computing, so a worker does it, one at a
time. A correct password is remembered as a keyed digest, until the user's keys change. So a scraper costs only one
check.

The rate of checks is limited for each address, and for all addresses together, to prevent guessing. A
remembered password needs no check.
"""

from __future__ import annotations

import base64
import hmac
from binascii import Error as Base64Error
from collections.abc import Callable
from enum import Enum

import attrs

from odradek.env.ports import Env
from odradek.node.configuration.metrics_config import METRICS
from odradek.security.acls.authorizer import Authorizer
from odradek.security.acls.rules import CLUSTER_NAME, Operation, ResourceType
from odradek.security.audit.auditor import Auditor
from odradek.security.scram import ITERATIONS_MIN, MECHANISMS, ScramMechanism, ServerKeys, server_keys

__all__ = ["BASIC", "Answer", "PageLogins"]

BASIC = "BASIC"
"""The name of the login mechanism in metrics and in the audit log."""
CHECKS_PER_ADDRESS_MAX, CHECKS_PER_ADDRESS_SECOND = 5, 0.2
CHECKS_MAX, CHECKS_PER_SECOND = 20, 2.0
ADDRESSES_MAX = 1_000
REMEMBERED_MAX = 100
TEXT_BYTES_MAX = 1_024
"""The maximum number of bytes of a user name and password together."""
_MECHANISMS = tuple(sorted(MECHANISMS.values(), key=lambda each: -each.number))


class Answer(Enum):
    """The HTTP status for a reader of the page."""

    WELCOME = 200
    UNKNOWN = 401
    FORBIDDEN = 403
    TOO_MANY = 429


@attrs.define
class _Checks:
    """The number of password checks that are still allowed, for one address or for all addresses together. It grows by
    `per_second` each second.
    """

    most: int
    per_second: float
    left: float
    as_of: float

    def fill(self, now: float) -> float:
        self.left = min(float(self.most), self.left + (now - self.as_of) * self.per_second)
        self.as_of = now
        return self.left


class PageLogins:
    """Checks the logins of the readers of a node's metrics page."""

    def __init__(
        self,
        env: Env,
        keys_of: Callable[[str, int], ServerKeys | None],
        authorizer: Authorizer | None,
        auditor: Auditor,
    ) -> None:
        """`keys_of` returns a user's SCRAM keys by the user's name and the mechanism's number; None for an unknown
        user.
        """
        self._clock = env.clock
        self._keys_of = keys_of
        self._authorizer = authorizer
        self._auditor = auditor
        self._workers = env.new_workers(1)
        self._secret = env.new_uuid() + env.new_uuid()
        self._remembered: dict[bytes, None] = {}
        self._of_address: dict[str, _Checks] = {}
        self._of_all = _Checks(CHECKS_MAX, CHECKS_PER_SECOND, CHECKS_MAX, self._clock.monotonic())
        self.checks = 0
        """The number of passwords that were checked by computing all iterations."""

    async def check(self, header: bytes | None, host: str, principal: str | None) -> Answer:
        """Decide whether a reader may read the page, by the header `Authorization` or by the `principal` of its
        certificate.
        """
        if principal is None:
            parsed = None if header is None else _parsed(header)
            if parsed is None:
                return Answer.UNKNOWN
            user, password = parsed
            answer = await self._check_password(user, password, host)
            if answer is not Answer.WELCOME:
                return answer
            principal = f"User:{user}"
        return Answer.WELCOME if self._may_read(principal, host) else Answer.FORBIDDEN

    def _may_read(self, principal: str, host: str) -> bool:
        if self._authorizer is None:
            return True
        judgement = self._authorizer.judge(
            principal, host, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
        )
        if not judgement.is_allowed:
            self._auditor.login_failed(
                METRICS, host, principal, BASIC, "the user has no right to DESCRIBE the cluster"
            )
        return judgement.is_allowed

    async def _check_password(self, user: str, password: str, host: str) -> Answer:
        known = self._known(user)
        digests = [(self._digest(user, password, keys), mechanism, keys) for mechanism, keys in known]
        if any(digest in self._remembered for digest, _, _ in digests):
            return Answer.WELCOME
        if not self._may_check(host):
            self._auditor.login_failed(
                METRICS, host, user, BASIC, "the client tried too many wrong passwords"
            )
            return Answer.TOO_MANY
        if not known:
            # Do as much work as for a user who exists, so that the time reveals nothing.
            mechanism = _MECHANISMS[0]
            filler = bytes(mechanism.digest_bytes)
            nobody = ServerKeys(
                hmac.digest(self._secret, user.encode(), "sha256"), filler, filler, ITERATIONS_MIN
            )
            await self._workers.run(_is_password, mechanism, nobody, password)
        for digest, mechanism, keys in digests[:1]:
            self.checks += 1
            is_right = await self._workers.run(_is_password, mechanism, keys, password)
            # A user who was removed or got another password meanwhile is refused.
            if is_right and self._keys_of(user, mechanism.number) == keys:
                self._remember(digest)
                self._auditor.logged_in(METRICS, host, f"User:{user}", BASIC)
                return Answer.WELCOME
        self._auditor.login_failed(METRICS, host, user, BASIC, "invalid credentials")
        return Answer.UNKNOWN

    def _known(self, user: str) -> list[tuple[ScramMechanism, ServerKeys]]:
        """Return a user's SCRAM keys, the strongest mechanism first; empty for an unknown user."""
        return [
            (each, keys) for each in _MECHANISMS if (keys := self._keys_of(user, each.number)) is not None
        ]

    def _digest(self, user: str, password: str, keys: ServerKeys) -> bytes:
        text = b"\0".join((user.encode(), password.encode(), keys.stored_key, keys.salt))
        return hmac.digest(self._secret, text, "sha256")

    def _remember(self, digest: bytes) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[digest] = None

    def _may_check(self, host: str) -> bool:
        """True if one more password from this address may be checked; counts the check."""
        now = self._clock.monotonic()
        address = self._of_address.get(host)
        if address is None:
            if len(self._of_address) >= ADDRESSES_MAX:
                full = [key for key, each in self._of_address.items() if each.fill(now) >= each.most]
                for each in full:
                    del self._of_address[each]
                if not full:
                    return False
            address = self._of_address[host] = _Checks(
                CHECKS_PER_ADDRESS_MAX, CHECKS_PER_ADDRESS_SECOND, CHECKS_PER_ADDRESS_MAX, now
            )
        if min(address.fill(now), self._of_all.fill(now)) < 1:
            return False
        address.left -= 1
        self._of_all.left -= 1
        return True


def _parsed(header: bytes) -> tuple[str, str] | None:
    """Parse user name and password from the header; None if it is invalid. Control characters are not allowed (RFC
    7617).
    """
    scheme, _, text = header.strip().partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        decoded = base64.b64decode(text.strip(), validate=True)
        user, colon, password = decoded.decode().partition(":")
    except (Base64Error, ValueError):
        return None
    if (
        not (user and colon)
        or len(decoded) > TEXT_BYTES_MAX
        or any(ord(each) < 32 for each in user + password)
    ):
        return None
    return user, password


def _is_password(mechanism: ScramMechanism, keys: ServerKeys, password: str) -> bool:
    salted = mechanism.salted_password(password, keys.salt, keys.iterations)
    found = server_keys(mechanism, salted, keys.salt, keys.iterations)
    return hmac.compare_digest(found.stored_key, keys.stored_key)
