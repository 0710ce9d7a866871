"""A listener's demands on tokens, and the source of their issuer's keys: values of Kafka's configuration keys. PURE.

The settings are apart from the code that uses them, because that code loads the library for tokens, which most
nodes do not need.
"""

from __future__ import annotations

import attrs

from odradek.env.token_ports import DocumentAddress

__all__ = ["KeySourceSettings", "OauthSettings", "TokenExpectations"]


@attrs.frozen
class KeySourceSettings:
    """Kafka's keys behind `sasl.oauthbearer.jwks.endpoint.`; its `retry.backoff.max.ms` is `retry_backoff_ms_max`."""

    address: DocumentAddress
    refresh_ms: int = 3_600_000
    retry_backoff_ms: int = 100
    retry_backoff_ms_max: int = 10_000


@attrs.frozen
class TokenExpectations:
    """A listener's demands on a token; the names of Kafka's keys behind `sasl.oauthbearer.`."""

    expected_audience: frozenset[str] = frozenset()
    """Empty: any audience, or none."""
    expected_issuer: str = ""
    """Empty: any issuer."""
    clock_skew_seconds: int = 30
    sub_claim_name: str = "sub"
    scope_claim_name: str = "scope"


@attrs.frozen
class OauthSettings:
    """OAUTHBEARER on one listener."""

    keys: KeySourceSettings
    expectations: TokenExpectations
