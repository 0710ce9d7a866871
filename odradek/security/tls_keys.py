"""Rules for single `ssl.*` keys, shared by nodes and clients. PURE."""

from __future__ import annotations

__all__ = ["STORE_TYPES", "WAY_OUT_OF_JKS", "protocol_refusal"]

STORE_TYPES = ("PEM", "PKCS12")
WAY_OUT_OF_JKS = (
    "one of PEM, PKCS12; turn a JKS file into one: keytool -importkeystore -srckeystore FILE "
    "-destkeystore FILE.p12 -deststoretype PKCS12"
)
PROTOCOLS = ("TLS", "TLSv1.2", "TLSv1.3")


def protocol_refusal(protocol: str) -> str:
    """Return the allowed values if `ssl.protocol` cannot have this value; empty if it can. (The versions in use are
    decided by `ssl.enabled.protocols`.)
    """
    return "" if protocol in PROTOCOLS else f"one of {', '.join(PROTOCOLS)}"
