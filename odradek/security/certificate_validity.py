"""The validity of a client's certificate, checked against the whole interval in which the true time may lie. PURE.

OpenSSL checks a certificate by the wall clock alone. A jump of the clock may be wrong, and must not make an expired
certificate valid. So the client's own certificate is checked again. (Python does not expose the certificates above
it.)
"""

from __future__ import annotations

from datetime import UTC, datetime

from odradek.env.agreed_clock import Moment
from odradek.security.distinguished_names import SEQUENCE, MalformedName, elements, inside, signed_fields

__all__ = ["refusal_by_time", "validity_of"]

_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_FIRST_SHORT_YEAR = 50
"""Two-digit years from 50 on mean 1950 to 1999, smaller ones 2000 to 2049 (RFC 5280, section 4.1.2.5.1)."""


def refusal_by_time(certificate: bytes, now: Moment) -> str:
    """Return why a certificate is not valid in the whole interval `now` (earliest to latest possible time); empty if it
    is.

    Raises `MalformedName`.
    """
    not_before_ms, not_after_ms = validity_of(certificate)
    if now.latest_ms // 1000 > not_after_ms // 1000:
        return "the certificate has expired"
    if now.earliest_ms < not_before_ms:
        return "the certificate is not valid yet"
    return ""


def validity_of(certificate: bytes) -> tuple[int, int]:
    """Return the first and the last moment at which a certificate (DER) is valid, in milliseconds since 1970.

    Raises `MalformedName`.
    """
    found = [
        _moment(tag, value) for tag, value, _ in elements(inside(signed_fields(certificate)[3][2], SEQUENCE))
    ]
    if len(found) != 2:
        raise MalformedName("the validity of a certificate must consist of two times")
    return found[0], found[1]


def _moment(tag: int, value: bytes) -> int:
    """Decode a DER time, which is in UTC and whole seconds, into milliseconds since 1970."""
    text = value.decode("ascii", "replace")
    if tag == _UTC_TIME and len(text) == 13 and text[:2].isdecimal():
        text = ("19" if int(text[:2]) >= _FIRST_SHORT_YEAR else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise MalformedName("the validity of a certificate has a time that cannot be read")
    try:
        moment = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except ValueError as error:
        raise MalformedName("the validity of a certificate has a time that cannot be read") from error
    return int(moment.timestamp()) * 1000
