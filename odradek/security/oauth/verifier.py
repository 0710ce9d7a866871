"""OAUTHBEARER on one listener: the keys of the issuer, and logins by tokens that these keys have signed. PORTED."""

from __future__ import annotations

import attrs

from odradek.env.ports import Log, Workers
from odradek.env.token_ports import FetchDocument
from odradek.security.oauth.key_source import KeySource
from odradek.security.oauth.login import BearerLogin
from odradek.security.oauth.oauth_settings import OauthSettings
from odradek.security.oauth.token_rules import TokenRules
from odradek.serving.node_env import NodeEnv

__all__ = ["Verifier"]


class Verifier:
    """Authenticates clients by tokens of one issuer."""

    def __init__(
        self, env: NodeEnv, log: Log, settings: OauthSettings, fetch: FetchDocument, workers: Workers
    ) -> None:
        self._clock = env.agreed_clock
        self._rules = TokenRules(**attrs.asdict(settings.expectations, recurse=False))
        self._source = KeySource(env, log, settings.keys, fetch, workers)

    async def run(self) -> None:
        """Fetch the issuer's keys and keep them current. This never returns."""
        await self._source.run()

    def new_login(self) -> BearerLogin:
        """Make the server's side of a new login."""
        return BearerLogin(self._rules, lambda: self._source.keys, self._clock.moment, self._source.want)
