"""An operator that creates, renews and expires delegation tokens, and clients that log in with them (KIP-48). PORTED.

After its expiry a token allows no login, and connections that have logged in with it are rejected (KIP-368). The
operator knows the expiry from the answers to its requests. If an answer is missing, the token counts as valid without
limit. At the end every broker accepts a new token, and rejects an expired one.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from odradek.client.admin.admin_tokens import (
    DelegationToken,
    create_delegation_token,
    expire_delegation_token,
    renew_delegation_token,
)
from odradek.client.core.client_config import ClientConfig
from odradek.client.core.client_security import ClientSecurity
from odradek.client.errors import AuthenticationFailed, ClientError
from odradek.client.shells.aio import AsyncClient
from odradek.env.ports import Event
from odradek.security.sasl_client import Credentials
from odradek.wire.errors import KafkaError
from sim.history import SafetyViolation
from sim.load.operators.duty import CALL_SECONDS, Duty, Site
from sim.load.operators.guarded_client import MECHANISM, secured_client
from sim.machine.guards import ADMIN, ADMIN_PASSWORD, PLAIN, SASL_PORT
from sim.machine.members import Member

HOLDERS = ("holder-1", "holder-2")
"""The machines of the clients that log in with tokens."""
TOKENS_MAX = 4
"""How many of the newest tokens the clients use. The controller removes older tokens after their expiry."""
PERIODS_MS = (500, 2_000, 5_000)
SHORT_MS = 1_000
"""The lifetime in milliseconds of the token that must have expired at the end."""
LATE_MS = 1_000
"""How many milliseconds after its expiry a token may still be accepted. The clocks of a run differ by less than this,
unless a fault sets them.
"""
CLOCKS_SET_MS = 43_200_000
"""The smallest error of a clock that has jumped, in milliseconds: a node does not trust a clock with such an error.
Clocks that a fault has set have smaller errors, and nodes trust them.
"""
ASKS_IN_A_ROW = 8
CALM_SECONDS_MAX = 0.4

__all__ = ["HOLDERS", "Tokens"]


@attrs.define(eq=False)
class _Held:
    """A token, and its latest possible expiry according to the answers; None if an answer is missing."""

    token: DelegationToken
    ends_ms: int | None


class Tokens(Duty):
    """An operator, and the clients that log in with its tokens."""

    calm_seconds_max = 1.0

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._admin: AsyncClient = secured_client(self.load, site.name, ADMIN, ADMIN_PASSWORD, PLAIN)
        self._held: list[_Held] = []
        self._ended: list[Event] = []
        self.let_in = self.refused = 0

    def statistics(self) -> dict[str, int]:
        """Count the requests with tokens that were accepted, and the logins that were rejected."""
        return {"tokens taken": self.let_in, "tokens refused": self.refused}

    async def run(self) -> None:
        self._ended = [self.world.spawn(self._use, name) for name in HOLDERS]
        await super().run()
        for ended in self._ended:
            await ended.wait()

    # --- the operator

    async def step(self) -> None:
        draw = self.random.random()
        if draw < 0.4 or not self._held:
            self._held = [*self._held, await self._make()][-TOKENS_MAX:]
            return
        held, period_ms = self.random.choice(self._held), self.random.choice(PERIODS_MS)
        before, held.ends_ms = held.ends_ms, None
        hmac, core = held.token.hmac, self._admin.core
        if draw < 0.7:
            renewing = renew_delegation_token(core, hmac, period_ms=period_ms, timeout=CALL_SECONDS)
            ends_ms = await self._admin.run(renewing)
        else:
            period_ms = self.random.choice((-1, period_ms))
            expiring = expire_delegation_token(core, hmac, period_ms=period_ms, timeout=CALL_SECONDS)
            ends_ms = await self._admin.run(expiring)
        if before is not None:
            # Keep the later expiry: a broker with older metadata may not know yet that the token expires sooner.
            held.ends_ms = max(before, ends_ms)

    async def _make(self, lifetime_ms: int = -1) -> _Held:
        making = create_delegation_token(self._admin.core, max_lifetime_ms=lifetime_ms, timeout=CALL_SECONDS)
        token = await self._admin.run(making)
        return _Held(token, token.expires_at_ms)

    # --- clients

    async def _use(self, machine: str) -> None:
        """Log in with one random token after another. After each login send metadata requests, until a request is
        rejected or enough were answered.
        """
        while not self.is_over:
            await self.world.sleep(self.random.uniform(0.0, CALM_SECONDS_MAX) * self.load.pace)
            if not self._held:
                continue
            held = self.random.choice(self._held)
            client = self._client(machine, held)
            try:
                for _ in range(ASKS_IN_A_ROW):
                    await self._ask(client, held, machine)
                    await self.world.sleep(self.random.uniform(0.0, CALM_SECONDS_MAX))
            except AuthenticationFailed:
                self.refused += 1
            except (KafkaError, ClientError) as error:
                self.world.trace.record(self.world.now, machine, "token", error)
            except SafetyViolation as error:
                self.world.refute(error)
            finally:
                client.close()

    def _client(
        self, machine: str, held: _Held, servers: Sequence[tuple[str, int]] | None = None
    ) -> AsyncClient:
        token = held.token
        login = Credentials(MECHANISM, token.token_id, token.password, by_token=True)
        config = ClientConfig(
            client_id=machine,
            request_timeout=CALL_SECONDS,
            fail_fast=False,
            security=ClientSecurity(None, login),
        )
        where = servers or [(host, SASL_PORT) for host, _ in self.load.bootstrap]
        return AsyncClient(self.world.node_env(machine), self.world.tasks, where, config)

    async def _ask(self, client: AsyncClient, held: _Held, machine: str) -> None:
        """Send a request over a connection that has logged in with the token. Raises `SafetyViolation` if a request
        that was sent after the token's expiry is answered.
        """
        asked_ms = self._wall_ms(machine)
        await client.metadata()
        self.let_in += 1
        ends_ms = held.ends_ms
        if ends_ms is not None and asked_ms > ends_ms + LATE_MS and not self._are_clocks_set(machine):
            raise SafetyViolation(
                f"{machine} was served at {asked_ms}, and its token {held.token.token_id} has ended at {ends_ms}"
            )

    def _wall_ms(self, machine: str) -> int:
        return self.world.node_env(machine).clock.wall_ms()

    def _are_clocks_set(self, machine: str) -> bool:
        """True if a fault has set the clock of a node, so that the node may accept a token for longer."""
        now_ms = self._wall_ms(machine)
        ahead = (abs(self._wall_ms(member.name) - now_ms) for member in self.cluster.members)
        return any(LATE_MS / 2 < each < CLOCKS_SET_MS for each in ahead)

    @staticmethod
    def _doubts_its_clock(member: Member) -> bool:
        """True if a node's clock has jumped. Then the node does not know the time exactly, and compares expiries with
        the latest possible time.
        """
        running = member.running
        assert running is not None
        moment = running.env.agreed_clock.moment()
        return moment.latest_ms != moment.wall_ms

    # -- final checks ------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check that every broker accepts a valid token, and rejects an expired one. Raises `SafetyViolation`."""
        if self._are_clocks_set(self.site.name):
            self._admin.close()
            return
        await self.must_hold(self._wrong_renewed)
        short = await self._patiently_made()
        ends_ms = short.token.expires_at_ms
        await self.world.sleep(max(0.0, (ends_ms - self._wall_ms(self.site.name) + LATE_MS) / 1000))
        await self.must_hold(lambda: self._wrong_login(short, is_valid=False))
        self._admin.close()

    async def _patiently_made(self) -> _Held:
        made: list[_Held] = []

        async def make() -> str | None:
            made.append(await self._make(SHORT_MS))
            return None

        await self.must_hold(make)
        return made[-1]

    async def _wrong_renewed(self) -> str | None:
        """Describe a broker that rejects a new token; None if all accept it."""
        return await self._wrong_login(await self._make(), is_valid=True)

    async def _wrong_login(self, held: _Held, *, is_valid: bool) -> str | None:
        for member in self.cluster.brokers:
            if is_valid and self._doubts_its_clock(member):
                continue
            client = self._client(self.site.name, held, [(member.name, SASL_PORT)])
            try:
                await client.metadata()
                is_let_in = True
            except AuthenticationFailed:
                is_let_in = False
            finally:
                client.close()
            if is_let_in and not is_valid:
                raise SafetyViolation(f"{member.name} takes a token that has expired: {held.token}")
            if is_let_in != is_valid:
                return f"{member.name} refuses the token {held.token}"
        return None
