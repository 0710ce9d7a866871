"""Subjects and mapping rules whose details differ between implementations."""

from __future__ import annotations

from cryptography import x509
from cryptography.x509.name import _ASN1Type as Type
from cryptography.x509.oid import NameOID as Oid
from cryptography.x509.oid import ObjectIdentifier

_PRIVATE = ObjectIdentifier("1.3.6.1.4.1.99999.1")


def _part(oid: ObjectIdentifier, value: str | bytes, kind: Type | None = None) -> x509.NameAttribute:
    return x509.NameAttribute(oid, value, _type=kind)


def _name(*parts: x509.NameAttribute | list[x509.NameAttribute]) -> x509.Name:
    return x509.Name(
        [x509.RelativeDistinguishedName(each if isinstance(each, list) else [each]) for each in parts]
    )


def _common(value: str, kind: Type | None = None) -> x509.Name:
    return _name(_part(Oid.COMMON_NAME, value, kind))


SUBJECTS: dict[str, x509.Name] = {
    "plain": _name(
        _part(Oid.COUNTRY_NAME, "DE"),
        _part(Oid.STATE_OR_PROVINCE_NAME, "Hessen"),
        _part(Oid.LOCALITY_NAME, "Bad X"),
        _part(Oid.ORGANIZATION_NAME, "Acme"),
        _part(Oid.ORGANIZATIONAL_UNIT_NAME, "people"),
        _part(Oid.COMMON_NAME, "alice"),
    ),
    "escapes": _name(_part(Oid.ORGANIZATION_NAME, 'a,b+c"d\\e<f>g;h=i#j')),
    "hash first": _common("#abc"),
    "outer spaces": _common("  two before, two after  "),
    "a space": _common(" "),
    "inner spaces": _common("a   b"),
    "carriage returns": _common("\ra\r"),
    "newlines and a tab": _common("\na\tb\n"),
    "nul": _common("a\0b"),
    "unicode": _common("Jürgen Ωmega 日本 😀"),
    "BMPString": _common("Jrg", Type.BMPString),
    "T61String": _common("plain", Type.T61String),
    "UniversalString": _common("uni", Type.UniversalString),
    "IA5String": _common("ia5", Type.IA5String),
    "NumericString": _common("12 3", Type.NumericString),
    "VisibleString": _common("vis,ible", Type.VisibleString),
    "PrintableString": _common("prin,table", Type.PrintableString),
    "email": _name(_part(Oid.COMMON_NAME, "x"), _part(Oid.EMAIL_ADDRESS, "x@example.org")),
    "email in UTF-8": _name(_part(Oid.EMAIL_ADDRESS, "ü@example.org", Type.UTF8String)),
    "two in one part": _name(
        _part(Oid.ORGANIZATION_NAME, "o"), [_part(Oid.COMMON_NAME, "c"), _part(Oid.USER_ID, "u")]
    ),
    "two in one part, reversed": _name(
        _part(Oid.ORGANIZATION_NAME, "o"), [_part(Oid.USER_ID, "u"), _part(Oid.COMMON_NAME, "c")]
    ),
    "three in one part": _name(
        [
            _part(Oid.SERIAL_NUMBER, "7"),
            _part(Oid.COMMON_NAME, "c"),
            _part(Oid.ORGANIZATIONAL_UNIT_NAME, "z"),
        ]
    ),
    "many attributes": _name(
        _part(Oid.SERIAL_NUMBER, "42"),
        _part(Oid.TITLE, "Dr"),
        _part(Oid.GIVEN_NAME, "g"),
        _part(Oid.SURNAME, "s"),
        _part(Oid.DN_QUALIFIER, "q"),
        _part(Oid.STREET_ADDRESS, "st"),
        _part(Oid.DOMAIN_COMPONENT, "org"),
        _part(Oid.DOMAIN_COMPONENT, "example"),
        _part(Oid.USER_ID, "id"),
        _part(Oid.GENERATION_QUALIFIER, "Jr"),
        _part(Oid.POSTAL_CODE, "1"),
        _part(Oid.PSEUDONYM, "ps"),
    ),
    "long, of one's own": _name(_part(_PRIVATE, "long " + "x" * 300)),
    "of one's own": _name(_part(_PRIVATE, "ü")),
    "bits": _name(_part(Oid.X500_UNIQUE_IDENTIFIER, b"\x01\x02", Type.BitString)),
    "two of a kind": _name(
        _part(Oid.ORGANIZATIONAL_UNIT_NAME, "a"),
        _part(Oid.ORGANIZATIONAL_UNIT_NAME, "b"),
        _part(Oid.COMMON_NAME, "c"),
    ),
    "empty": x509.Name([]),
}

_ALICE = "CN=Alice"
RULES: tuple[tuple[str, str], ...] = (
    ("DEFAULT", "CN=a,O=b"),
    ("RULE:^CN=(.*?),.*$/$1/", "CN=Alice,OU=x"),
    ("RULE:^CN=(.*?),.*$/$1/L", "CN=Alice,OU=x"),
    ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U,DEFAULT", "CN=Alice,OU=x,O=z"),
    ("RULE:.*/X/", _ALICE),
    ("RULE:CN=(.*?)/$1/", _ALICE),
    ("RULE:^CN=(.*)$/$1-$2/", _ALICE),
    ("RULE:^CN=(.*)$/$12/", _ALICE),
    ("RULE:^CN=(.*)$/$0/", _ALICE),
    ("RULE:^CN=(.*)$/a\\/b$1/", _ALICE),
    ("RULE:^CN=(.*)$/a\\$1/", _ALICE),
    ("RULE:^CN=.*$/a$1/", _ALICE),
    ("RULE:^CN=(.*)$/a$/", _ALICE),
    ("RULE:^CN=(.*)$/$x/", _ALICE),
    ("RULE:^CN=(.*)$//", _ALICE),
    ("RULE:^CN=(.*)$/ $1 /L", _ALICE),
    (" RULE:^CN=(.*)$/$1/ , DEFAULT ", _ALICE),
    ("RULE:^X=(.*)$/$1/", _ALICE),
    ("RULE:^CN=(.*)$/$1", _ALICE),
    ("RULE:^CN=(.*)$/$1/LU", _ALICE),
    ("RULE:^CN=(.*)$/$1/l", _ALICE),
    ("default", _ALICE),
    ("RULE:^CN=(.*)$/$1/DEFAULT", _ALICE),
    ("RULE:^CN=(.*)$/$1/L RULE:x/y/", _ALICE),
    ("RULE:^CN=(.*[/L", _ALICE),
    ("RULE:^cn=(?i)a(.*)$/$1/", "cn=ALICE"),
    ("RULE:^CN=(a|)(b|)(.*)$/$1$2$3/", _ALICE),
    ("RULE:^CN=(a)?(.*)$/[$1]$2/", _ALICE),
    ("RULE:^CN=(?<n>.*)$/${n}/", _ALICE),
    ("RULE:^CN=(?<n>.*)$/${m}/", _ALICE),
    ("RULE:^CN=([^,]*),(.*)$/$1|$2/,RULE:^O=.*$/o/", "O=b"),
    ("RULE:^CN=(.*)\\/(.*)$/$1-$2/", "CN=a/b"),
    ("DEFAULT,RULE:^CN=(.*)$/$1/", _ALICE),
    ("RULE:^CN=ü(.*)$/$1/U", "CN=üß"),
)
