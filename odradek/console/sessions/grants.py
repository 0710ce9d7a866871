"""Grants: the delegation tokens behind sessions of users who have shown a certificate. PORTED.

A grant is a token, the connection's certificate for which it was made, and the time of its renewal. Only requests
on connections with this certificate get at the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from odradek.client.admin import DelegationToken
from odradek.client.errors import ClientError
from odradek.console.http.messages import ClientCertificate
from odradek.console.sessions.token_maker import TokenGone, TokenMaker
from odradek.console.shapes.view_errors import ViewError
from odradek.env.ports import Clock, Log, Workers
from odradek.security.scram import MECHANISMS
from odradek.wire.errors import KafkaError

__all__ = ["CERTIFICATE", "Grant", "Grants"]

CERTIFICATE = "certificate"
"""The name of this way to log in, beside those of SASL's mechanisms."""
_RENEWED_SHARE = 1 / 3
"""A token is renewed after this share of its life, so that renewals may fail for the rest of it."""
RETRY_SECONDS = 30.0
_SCRAM = tuple(sorted(MECHANISMS, reverse=True))
"""The mechanisms by which tokens log in, the best first."""
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@attrs.define(eq=False)
class Grant:
    """A token of the console for a user. `token` changes if the cluster has lost it."""

    certificate: ClientCertificate
    principal: str
    mechanism: str
    token: DelegationToken
    renewed_at: float
    """In seconds of the monotonic clock."""
    renewed_ms: int
    """In milliseconds since 1970. The monotonic clock stands still while a machine sleeps."""
    retry_at: float = float("-inf")
    """The time of the next try after the cluster has refused a renewal, in seconds of the monotonic clock."""

    def properties(self) -> Mapping[str, object]:
        """Return the keys of clients that log in with the token."""
        return {
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": f'{_MODULE} required username="{self.token.token_id}" '
            f'password="{self.token.password}" tokenauth="true";',
        }


class Grants:
    """Makes grants, and keeps their tokens alive."""

    def __init__(self, maker: TokenMaker, workers: Workers, clock: Clock, log: Log) -> None:
        self._maker = maker
        self._workers = workers
        self._clock = clock
        self._log = log
        self._silent_until = float("-inf")
        """No token is renewed before this time, because no broker has answered."""

    async def make(self, certificate: ClientCertificate, offered: Sequence[str]) -> Grant:
        """Create a token for the owner of a certificate. `offered` are the mechanisms of the brokers. Raises `ViewError`."""
        principal = certificate.principal
        if principal is None:
            raise ViewError(
                403,
                "CERTIFICATE_WITHOUT_NAME",
                f"none of the ssl.principal.mapping.rules of the console's listener matches the name in your "
                f"certificate, {certificate.name}",
            )
        mechanism = next((each for each in _SCRAM if each in offered), None)
        if mechanism is None:
            raise ViewError(
                501,
                "TOKENS_DISABLED",
                f"the brokers let delegation tokens in by SCRAM alone, and offer only {', '.join(offered)}: add SCRAM to "
                "sasl.enabled.mechanisms of their listener, or log in otherwise",
            )
        began, began_ms = self._clock.monotonic(), self._clock.wall_ms()
        token = await self._workers.run(self._maker.create, principal)
        return Grant(certificate, principal, mechanism, token, began, began_ms)

    def is_due(self, grant: Grant) -> bool:
        """True if the token should be renewed now."""
        now, share = self._clock.monotonic(), self._maker.seconds * _RENEWED_SHARE
        if now < max(grant.retry_at, self._silent_until):
            return False
        slept = self._clock.wall_ms() - grant.renewed_ms >= share * 1000
        return slept or now - grant.renewed_at >= share

    async def renew(self, grant: Grant) -> bool:
        """Renew the token of a grant. Return true if the cluster had lost it, so that it is another one now.

        A cluster that does not answer is asked again later. Raises `ViewError` if the user gets no token any more.
        """
        began, began_ms = self._clock.monotonic(), self._clock.wall_ms()
        is_new = False
        try:
            await self._workers.run(self._maker.renew, grant.token)
        except TokenGone:
            try:
                grant.token = await self._workers.run(self._maker.create, grant.principal)
            except (KafkaError, ClientError) as error:
                self._put_off(grant, error)
                return False
            is_new = True
        except (KafkaError, ClientError) as error:
            self._put_off(grant, error)
            return False
        grant.renewed_at, grant.renewed_ms = began, began_ms
        return is_new

    def _put_off(self, grant: Grant, error: KafkaError | ClientError) -> None:
        """Try again later: all tokens, if no broker has answered, or this one."""
        self._log.warning("console.token_late", user=grant.principal, reason=str(error))
        later = self._clock.monotonic() + RETRY_SECONDS
        if isinstance(error, ClientError):
            self._silent_until = later
        else:
            grant.retry_at = later

    async def give_back(self, grant: Grant) -> None:
        """Expire the token of a grant. If the cluster does not answer, the token ends by itself."""
        try:
            await self._workers.run(self._maker.expire, grant.token)
        except (KafkaError, ClientError) as error:
            self._log.warning("console.token_left", user=grant.principal, reason=str(error))

    def close(self, grants: Sequence[Grant]) -> None:
        """Expire the tokens of these grants, and close the connections. It blocks for seconds at the most."""
        try:
            for each in grants:
                self._maker.expire(each.token, is_last=True)
        except (KafkaError, ClientError) as error:
            # The others fail in the same way. They end by themselves.
            self._log.warning("console.token_left", reason=str(error))
        finally:
            self._maker.close()

    def ends_after(self, grant: Grant) -> float:
        """Return the seconds for which a session of this grant may last: until the end of the certificate, or of the
        token's last renewal.
        """
        last_ms = min(grant.certificate.ends_ms, grant.token.max_at_ms)
        return (last_ms - self._clock.wall_ms()) / 1000
