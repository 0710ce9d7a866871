"""The name in a certificate in Java's format (`X500Principal.getName()`, RFC 2253), because rules and ACLs use this
format. PURE.

The name is read from the certificate's DER itself. Java reads the bytes of most strings as UTF-8, whatever their ASN.1
type is. If an attribute's type has no keyword, Java prints the attribute's DER in hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = [
    "SEQUENCE",
    "MalformedName",
    "distinguished_name",
    "elements",
    "inside",
    "signed_fields",
    "subject_of",
]

SEQUENCE, _OID = 0x30, 0x06
_VERSION = 0xA0
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_TEXT_TAGS = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))
"""The DER tags of text: UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString."""
_ESCAPED = frozenset(',=+<>#;"\\')
_BLANKS = " \r"


class MalformedName(ValueError):
    """Raised if bytes are not the DER of a certificate or name."""


def signed_fields(certificate: bytes) -> list[tuple[int, bytes, bytes]]:
    """List the fields of a certificate's DER without the version (RFC 5280, section 4.1). The list begins
    with serial number, signature algorithm, issuer, validity and subject. Raises `MalformedName`.
    """
    body = inside(inside(certificate, SEQUENCE), SEQUENCE)
    fields = [element for element in elements(body) if element[0] != _VERSION]
    if len(fields) < 5:
        raise MalformedName("the certificate has no subject")
    return fields


def subject_of(certificate: bytes) -> bytes:
    """Return the subject's name (DER) from a certificate (DER). Raises `MalformedName`."""
    return signed_fields(certificate)[4][2]


def distinguished_name(name: bytes) -> str:
    """Format a name (DER) as text, with the most specific part first: `CN=alice,O=Acme`. Raises `MalformedName`."""
    parts = [part for _, part, _ in elements(inside(name, SEQUENCE))]
    return ",".join("+".join(_attribute(pair) for _, pair, _ in elements(part)) for part in reversed(parts))


def _attribute(pair: bytes) -> str:
    found = list(elements(pair))
    if len(found) != 2 or found[0][0] != _OID:
        raise MalformedName("an attribute of the certificate's name must be a type and a value")
    number = _dotted(found[0][1])
    tag, value, whole = found[1]
    keyword = _KEYWORDS.get(number)
    if keyword is None or tag not in _TEXT_TAGS:
        return f"{keyword or number}=#{whole.hex()}"
    return f"{keyword}={_escaped(value.decode(errors='replace'))}"


def _escaped(text: str) -> str:
    begin = len(text) - len(text.lstrip(_BLANKS))
    end = len(text.rstrip(_BLANKS))
    found = []
    for index, char in enumerate(text):
        is_outer_blank = index < begin or index >= end
        if char == "\0":
            found.append("\\00")
        else:
            found.append("\\" + char if is_outer_blank or char in _ESCAPED else char)
    return "".join(found)


def _dotted(value: bytes) -> str:
    numbers, number = [], 0
    for byte in value:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise MalformedName("the certificate's name has an empty object identifier")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def inside(data: bytes, tag: int) -> bytes:
    element = next(elements(data), None)
    if element is None or element[0] != tag:
        raise MalformedName(f"the certificate lacks an element of type {tag:#x} at a place that requires it")
    return element[1]


def elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the consecutive DER elements of `data`: tag, value, and the whole element. Raises `MalformedName`."""
    at = 0
    while at < len(data):
        start = at
        if at + 2 > len(data):
            raise MalformedName("an element of the certificate is cut off")
        tag, size = data[at], data[at + 1]
        at += 2
        if size >= 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[at : at + count])
            at += count
        if at + size > len(data):
            raise MalformedName("an element of the certificate is cut off")
        yield tag, data[at : at + size], data[start : at + size]
        at += size
