"""SCRAM challenges for unknown users.

Their salts and iterations have the forms that real users have, in the same proportions.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest

from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.security.salt_forms import (
    FORMS_MAX,
    NO_USERS,
    OUR_FORM,
    SALT_BYTES_MAX,
    SaltForm,
    SaltForms,
    form_of,
)
from odradek.security.sasl_server import Login, SaslSettings
from odradek.security.scram import MECHANISMS, ScramClient
from odradek.wire.messages.metadata_records import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from odradek.wire.structure import Message

SECRET = b"the brokers' secret"
KAFKAS_SALTS = (b"1odh2d3mpn0aqm9vk5sg2rgb1a", b"zdh2d3mpn0aqm9vk5sg2rgb1a")
SHA_512 = MECHANISMS["SCRAM-SHA-512"]


def base_36(number: int) -> bytes:
    digits = b""
    while number:
        number, digit = divmod(number, 36)
        digits = b"0123456789abcdefghijklmnopqrstuvwxyz"[digit : digit + 1] + digits
    return digits


def credential(user: str, salt: bytes, iterations: int = 4096) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(user, SHA_512.number, salt, b"stored", b"server", iterations)


def users(random: Random) -> list[UserScramCredentialRecord]:
    """Make a hundred users: 60 by Kafka's tools, 30 by ours, and 10 by librdkafka with more iterations."""
    made = [credential(f"kafka-{each}", base_36(random.getrandbits(130))) for each in range(60)]
    made += [credential(f"ours-{each}", random.randbytes(16)) for each in range(30)]
    return made + [credential(f"others-{each}", random.randbytes(64), 8192) for each in range(10)]


def image_of(records: Iterable[Message], base: MetadataImage | None = None) -> MetadataImage:
    base = MetadataImage() if base is None else base
    builder = ImageBuilder(base)
    for offset, record in enumerate(records, base.offset + 1):
        builder.replay(offset, record, 1)
    return builder.build()[0]


def challenge(forms: SaltForms, user: str, *, by_token: bool = False) -> SaltForm:
    """Return the form of the challenge for a user who does not exist."""
    login = Login(
        SaslSettings((SHA_512.name,), salt_secret=SECRET),
        lambda *_: None,
        lambda: "n",
        lambda: 0.0,
        forms=lambda: forms,
    )
    login.handshake(SaslHandshakeRequest(SHA_512.name), 1)
    first = ScramClient(SHA_512, user, "x", "c", by_token=by_token).first()
    told = login.authenticate(SaslAuthenticateRequest(first)).auth_bytes.decode()
    _, salt, iterations = (each.partition("=")[2] for each in told.split(","))
    return form_of(base64.b64decode(salt), int(iterations))


def test_a_form_says_nothing_of_who_exists() -> None:
    """Each form of challenge has the same share among unknown names as among users, so it reveals nothing."""
    forms = image_of(users(Random(1))).access.salt_forms
    heard = Counter(challenge(forms, f"nobody-{each}") for each in range(3_000))
    assert {form: round(count / 300) for form, count in heard.items()} == {
        form_of(KAFKAS_SALTS[0], 4096): 6,
        OUR_FORM: 3,
        SaltForm("bytes", 64, 8192): 1,
    }


def test_numbers_of_kafkas_have_their_lengths() -> None:
    """Made-up salts in Kafka's form, 130 bits in base 36, have 25 or 26 characters as often as real ones."""
    form, random = form_of(KAFKAS_SALTS[0], 4096), Random(2)
    assert form == form_of(KAFKAS_SALTS[1], 4096)
    real = Counter(len(base_36(random.getrandbits(130))) for _ in range(2_000))
    made = [form.salt(SECRET, b"%d" % each) for each in range(2_000)]
    lengths = Counter(map(len, made))
    assert all(abs(lengths[each] - real[each]) < 150 for each in (25, 26))
    assert {salt[:1] for salt in made if len(salt) == 26} == {b"1"}


@pytest.mark.parametrize(
    "salt",
    [b"a1" * 16, b"zz" * 16, b"Zz" * 8, b"Zz+/" * 50, b"a text, with blanks", bytes(range(16)), b"\xff" * 64],
)
def test_a_made_up_salt_has_the_form_that_it_imitates(salt: bytes) -> None:
    """A made-up salt has the length, alphabet and iterations of the form.

    A name always gets the same salt, and other names get others.
    """
    form = form_of(salt, 5_000)
    made = [form.salt(SECRET, b"nobody-%d" % each) for each in range(50)]
    assert {form_of(each, 5_000) for each in made} == {form}
    assert len(set(made)) == 50
    assert made == [form.salt(SECRET, b"nobody-%d" % each) for each in range(50)]


def test_a_name_keeps_its_form_while_users_come_and_go() -> None:
    """One user is added to a hundred users. Few unknown names change their form, and all brokers choose the same form
    for a name."""
    image = image_of(users(Random(3)))
    more = image_of([credential("new", b"x" * 16)], image)
    names = [f"nobody-{each}" for each in range(1_000)]
    before, after = image.access.salt_forms, more.access.salt_forms
    moved = sum(challenge(before, name) != challenge(after, name) for name in names)
    assert 0 < moved < 50
    assert after == image_of(more.access.records()).access.salt_forms
    back = image_of([RemoveUserScramCredentialRecord("new", SHA_512.number)], more)
    assert back.access.salt_forms == before
    replaced = image_of([credential("new", b"y" * 64, 8192)], more).access.salt_forms
    assert replaced == image_of([*users(Random(3)), credential("new", b"y" * 64, 8192)]).access.salt_forms


def test_what_has_no_users_looks_like_our_own() -> None:
    """A mechanism without users, and unknown ids of delegation tokens, get our own form."""
    only_512 = image_of(users(Random(4))).access.salt_forms
    assert {challenge(NO_USERS, f"n{each}") for each in range(100)} == {OUR_FORM}
    assert {only_512.of_nobody(1, SECRET, b"%d" % each) for each in range(100)} == {OUR_FORM}
    assert {challenge(only_512, f"n{each}", by_token=True) for each in range(100)} == {OUR_FORM}


def test_a_guess_costs_little_whatever_the_users_have() -> None:
    """Users have very many forms. Only the most common ones are used, and no very long salt is made up."""
    records = [credential(f"u{each}", b"\xfe" * each) for each in range(1, 200)]
    records += [credential(f"v{each}", b"\xfe" * 7) for each in range(100)]
    records += [credential(f"w{each}", b"\xfe" * (SALT_BYTES_MAX + 1)) for each in range(300)]
    forms = image_of(records).access.salt_forms
    heard = Counter(challenge(forms, f"nobody-{each}") for each in range(2_000))
    assert len({form.length for form in heard}) <= FORMS_MAX
    assert heard.most_common(1)[0][0] == SaltForm("bytes", 7, 4096)
    assert max(form.length for form in heard) <= SALT_BYTES_MAX
