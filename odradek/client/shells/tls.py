"""Opens TLS for the client shells. The modules for TLS are imported only for a client that uses TLS."""

from __future__ import annotations

from odradek.env.tls_ports import Tls, TlsRefused, TlsSettings

__all__ = ["opened_tls"]


def opened_tls(settings: TlsSettings) -> Tls:
    """Load the keys and certificates of these settings. Raises `ValueError` if they cannot be used."""
    from odradek.env.real_tls import open_tls

    try:
        return open_tls(settings)
    except TlsRefused as error:
        raise ValueError(str(error)) from error
