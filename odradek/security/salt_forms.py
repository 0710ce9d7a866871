"""The forms of salts, so that a challenge to an unknown user looks like a challenge to a real one. PURE.

Theory of operation
-------------------
Users' credentials come from different tools. Our tool makes salts of 16 bytes. Kafka's tool writes a number
of 130 bits in base 36. Other tools make 64 bytes, or a text. Some users have more iterations. So if all
made-up challenges had one fixed form, any other form would reveal that a user exists.

* **A made-up challenge has the form of a real user's challenge.** `SaltForms` counts the users of each form.
  A keyed hash maps an unknown name to one of all users, and the name gets the form of this user. So each form
  is as frequent among unknown names as among users, and reveals nothing.
* **A name keeps its form** while users are added and removed, except for names at the border between two
  forms.
* **Without users**, the form is that of `odradek user`.

Only a mechanism's `FORMS_MAX` most common forms are used. So users with a rarer form, or with a salt of more than
`SALT_BYTES_MAX`, can be recognized. The same holds for salts with a pattern, such as a hyphen at a fixed place.
"""

from __future__ import annotations

import hmac
import string
from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

__all__ = ["FORMS_MAX", "NO_USERS", "OUR_FORM", "SALT_BYTES_MAX", "SaltForm", "SaltForms", "form_of"]

FORMS_MAX = 32
SALT_BYTES_MAX = 255
KAFKA_BITS = 130
"""The bits of the random number that Kafka's tools write in base 36 as a salt."""
KAFKA_LENGTH_MIN, KAFKA_LENGTH_MAX = 20, 26
_BASE_36 = string.digits + string.ascii_lowercase
_ANY_BYTE = "".join(map(chr, range(256)))
_ALPHABETS = {
    "hex": "0123456789abcdef",
    "base 36": _BASE_36,
    "letters": string.digits + string.ascii_letters,
    "base 64": string.digits + string.ascii_letters + "+/",
    "printable": "".join(map(chr, range(0x20, 0x7F))),
    "bytes": _ANY_BYTE,
}
"""Alphabets of salts, the smallest first. A salt's alphabet is the first that contains all its bytes."""
_AS_BYTES = {name: letters.encode("latin-1") for name, letters in _ALPHABETS.items()}
KAFKAS = "Kafka's number"


@attrs.frozen(order=True)
class SaltForm:
    """The properties of a challenge that an attacker sees: the salt's alphabet and length, and the iterations. The
    salts of Kafka's tools vary in length, so the `length` of their form is 0.
    """

    alphabet: str
    length: int
    iterations: int

    def salt(self, secret: bytes, name: bytes) -> bytes:
        """Compute a salt of this form from a name; the same name always gets the same salt."""
        if self.alphabet == KAFKAS:
            number = int.from_bytes(_stream(secret, name, 17)) >> (17 * 8 - KAFKA_BITS)
            return _in_base_36(number).encode()
        if self.alphabet == "bytes":
            return _stream(secret, name, self.length)
        letters, drawn = _AS_BYTES[self.alphabet], _stream(secret, name, 4 * self.length)
        return bytes(
            letters[int.from_bytes(drawn[at : at + 4]) % len(letters)] for at in range(0, len(drawn), 4)
        )


OUR_FORM = SaltForm("bytes", 16, 4096)
"""The form of the credentials that `odradek user` makes, and of the credentials of delegation tokens."""


def _is_kafkas(salt: bytes) -> bool:
    return (
        KAFKA_LENGTH_MIN <= len(salt) <= KAFKA_LENGTH_MAX
        and salt[:1] != b"0"
        and int(salt, 36).bit_length() <= KAFKA_BITS
    )


def form_of(salt: bytes, iterations: int) -> SaltForm:
    """Return the form of a user's challenge, from the salt and the iterations."""
    alphabet = next(name for name, letters in _AS_BYTES.items() if not salt.translate(None, letters))
    if alphabet in ("hex", "base 36") and _is_kafkas(salt):
        return SaltForm(KAFKAS, 0, iterations)
    return SaltForm(alphabet, len(salt), iterations)


@attrs.frozen
class SaltForms:
    """The number of users with each form, by Kafka's number of the mechanism. The object is immutable."""

    _counts: Mapping[tuple[int, SaltForm], int] = attrs.field(factory=dict)
    _common: Mapping[int, tuple[tuple[SaltForm, int], ...]] = attrs.field(factory=dict)
    """For each mechanism, its most common forms with their numbers of users, in the same order on all brokers."""

    def changed(
        self, gone: Iterable[tuple[int, SaltForm]], come: Iterable[tuple[int, SaltForm]]
    ) -> SaltForms:
        """Return the counts after some users were removed and others added. A user is given as (mechanism, form)."""
        counts = Counter(self._counts)
        counts.update(come)
        counts.subtract(gone)
        left = {each: count for each, count in counts.items() if count > 0}
        mechanisms = sorted({mechanism for mechanism, _ in left})
        return SaltForms(left, {each: _most_common(left, each) for each in mechanisms})

    def of_nobody(self, mechanism: int, secret: bytes, name: bytes) -> SaltForm:
        """Choose the form of the challenge for a name that no user has."""
        common = self._common.get(mechanism, ())
        total = sum(count for _, count in common)
        place = int.from_bytes(hmac.digest(secret, b"form of " + name, "sha256")[:8]) * total >> 64
        for form, count in common:
            if place < count:
                return form
            place -= count
        return OUR_FORM


NO_USERS = SaltForms()


def _most_common(
    counts: Mapping[tuple[int, SaltForm], int], mechanism: int
) -> tuple[tuple[SaltForm, int], ...]:
    found = sorted(
        (-count, form)
        for (number, form), count in counts.items()
        if number == mechanism and form.length <= SALT_BYTES_MAX
    )
    return tuple(sorted((form, -count) for count, form in found[:FORMS_MAX]))


def _stream(secret: bytes, name: bytes, count: int) -> bytes:
    """Derive `count` bytes from a name and a secret. They look random to anybody without the secret."""
    found = hmac.digest(secret, name, "sha256")
    block = 0
    while len(found) < count:
        block += 1
        found += hmac.digest(secret, b"%b\0%d" % (name, block), "sha256")
    return found[:count]


def _in_base_36(number: int) -> str:
    """Format a number in base 36 as Java does."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _BASE_36[digit] + digits
    return digits or "0"
