"""Rules about single `ssl.*` keys that nodes and clients share. PURE."""

from __future__ import annotations

__all__ = ["STORE_TYPES", "WAY_OUT_OF_JKS", "protocol_refusal"]

STORE_TYPES = ("PEM", "PKCS12")
WAY_OUT_OF_JKS = (
    "one of PEM, PKCS12; turn a JKS file into one: keytool -importkeystore -srckeystore FILE "
    "-destkeystore FILE.p12 -deststoretype PKCS12"
)
PROTOCOLS = ("TLS", "TLSv1.2", "TLSv1.3")


def protocol_refusal(protocol: str) -> str:
    """Explain why `ssl.protocol` cannot have this value; empty if it can. `ssl.enabled.protocols` decides the
    versions in use.
    """
    return "" if protocol in PROTOCOLS else f"one of {', '.join(PROTOCOLS)}"
