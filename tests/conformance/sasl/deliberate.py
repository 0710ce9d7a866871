"""Deliberate differences of our answers from Kafka's in the conversations, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BY_REASON", "DELIBERATE"]

_SCRAM = ("SCRAM-SHA-256_{}", "SCRAM-SHA-512_{}", "SCRAM-SHA-256_{}_of_old")


def _each(*names: str) -> tuple[str, ...]:
    return tuple(form.format(name) for name in names for form in _SCRAM)


BY_REASON: Mapping[str, tuple[str, ...]] = {
    "an unknown user gets a challenge as a known one does, and so nobody learns who exists": _each(
        "unknown_user"
    ),
    "the last message must repeat the header of the first (RFC 5802, section 5.1), which Kafka does not look at": _each(
        "own_authorization_id"
    ),
    "a mandatory extension that is unknown ends the exchange (RFC 5802, section 5.1); Kafka ignores it": _each(
        "mandatory_extension"
    ),
    "a proof of another length is a wrong one; Kafka has an exception and closes without an answer": (
        "SCRAM-SHA-256_proof_cut_short",
        "SCRAM-SHA-512_proof_cut_short",
        "SCRAM-SHA-256_proof_of_zeros",
        "SCRAM-SHA-512_proof_of_zeros",
        "scram_proof_of_the_other_digest",
    ),
    "a message without a token is malformed; Kafka has an exception, and closes": ("bearer_other_scheme",),
    "a connection has one try; Kafka judges a second token": (
        "bearer_a_second_try",
        "bearer_a_second_try_of_old",
    ),
    "amid tokens a foreign request ends the connection; Kafka first sends an empty answer": (
        "metadata_after_the_handshake",
        "metadata_in_a_renewal",
        "versions_in_a_renewal",
    ),
    "bare tokens renew no login, because they look like requests": ("renewal_of_old",),
    "a renewal by another mechanism is refused at once; Kafka closes without an answer, by the first token": (
        "renewal_by_another_mechanism",
        "renewal_by_an_unknown_mechanism",
    ),
}
DELIBERATE: Mapping[str, str] = {name: reason for reason, names in BY_REASON.items() for name in names}
"""Reasons, by the name of the conversation."""
