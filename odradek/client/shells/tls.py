"""TLS of the shells: opened when a client is made, and imported only then."""

from __future__ import annotations

from odradek.env.tls_ports import Tls, TlsRefused, TlsSettings

__all__ = ["opened_tls"]


def opened_tls(settings: TlsSettings) -> Tls:
    """Load keys and certificates. Raises `ValueError` if they cannot be used."""
    from odradek.env.real_tls import open_tls

    try:
        return open_tls(settings)
    except TlsRefused as error:
        raise ValueError(str(error)) from error
