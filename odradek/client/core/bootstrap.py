"""Parses bootstrap addresses: `host:port,host:port`, with IPv6 hosts in brackets. PURE."""

from __future__ import annotations

__all__ = ["parse_bootstrap"]


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """Parse a bootstrap list into (host, port) pairs. Raises `ValueError`; the error names the wrong part."""
    addresses = [_address(part.strip()) for part in text.split(",") if part.strip()]
    if not addresses:
        raise ValueError("no bootstrap address was given (expected HOST:PORT)")
    return addresses


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"the address {text!r} is not valid: an IPv6 host needs brackets, as in [::1]:9092")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"the address {text!r} is not valid: expected HOST:PORT, for example 127.0.0.1:9092")
    return host, int(port)
