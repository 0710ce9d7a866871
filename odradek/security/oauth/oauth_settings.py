"""Settings for tokens at one listener: what a token must have, and where the issuer's keys come from. PURE.

The settings are in a module of their own, because the code that uses them imports a library that most nodes do not
need.
"""

from __future__ import annotations

import attrs

from odradek.env.token_ports import DocumentAddress

__all__ = ["KeySourceSettings", "OauthSettings", "TokenExpectations"]


@attrs.frozen
class KeySourceSettings:
    """The values of Kafka's keys `sasl.oauthbearer.jwks.endpoint.*`; `retry_backoff_ms_max` is
    `retry.backoff.max.ms`.
    """

    address: DocumentAddress
    refresh_ms: int = 3_600_000
    retry_backoff_ms: int = 100
    retry_backoff_ms_max: int = 10_000


@attrs.frozen
class TokenExpectations:
    """The demands of a listener on a token. The attributes are named like Kafka's keys `sasl.oauthbearer.*`."""

    expected_audience: frozenset[str] = frozenset()
    """The accepted audiences; empty means that any audience, or none, is accepted."""
    expected_issuer: str = ""
    """The accepted issuer; empty means any issuer."""
    clock_skew_seconds: int = 30
    sub_claim_name: str = "sub"
    scope_claim_name: str = "scope"


@attrs.frozen
class OauthSettings:
    """The settings of OAUTHBEARER on one listener."""

    keys: KeySourceSettings
    expectations: TokenExpectations
