"""SASL conversations: correct logins, wrong ones, and requests out of order (KIP-43, KIP-152, KIP-255, KIP-368)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from odradek.security.oauth.client_message import ClientMessage, encode_client_message
from tests.conformance.sasl.servers import FRAME_BYTES_MAX
from tests.conformance.sasl.talk import NONCE, Case, Talk

__all__ = ["all_cases"]

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_CASES: list[Case] = []


def case(script: Callable[[Talk], None]) -> Callable[[Talk], None]:
    """Register a conversation for the listener that accepts all mechanisms."""
    _CASES.append(Case(script.__name__, script))
    return script


def case_of_short(script: Callable[[Talk], None]) -> Callable[[Talk], None]:
    """Register a conversation for the listener whose logins expire."""
    _CASES.append(Case(script.__name__, script, "short"))
    return script


# -- order ------------------------------------------------------------------------------------------------------


@case
def handshake_without_versions(talk: Talk) -> None:
    talk.handshake("PLAIN")
    talk.token(talk.plain("carol"))
    talk.metadata()


@case
def versions_twice(talk: Talk) -> None:
    talk.versions()
    talk.versions()


@case
def versions_that_are_unknown_then_known(talk: Talk) -> None:
    # A request in an unknown version is answered in version 0 (KIP-511).
    body = struct.pack(">hhih", 18, 99, 7, -1) + b"\0\x01\x01\0"
    talk.raw(struct.pack(">i", len(body)) + body)
    talk.skip()
    talk.versions(0)
    talk.handshake("PLAIN")


@case
def versions_after_the_handshake(talk: Talk) -> None:
    talk.handshake("PLAIN")
    talk.versions()


@case
def metadata_first(talk: Talk) -> None:
    talk.metadata()


@case
def metadata_after_versions(talk: Talk) -> None:
    talk.versions()
    talk.metadata()


@case
def metadata_after_the_handshake(talk: Talk) -> None:
    talk.handshake("PLAIN")
    talk.metadata()


@case
def token_first(talk: Talk) -> None:
    talk.token(talk.plain("carol"))


@case
def token_after_versions(talk: Talk) -> None:
    talk.versions()
    talk.token(talk.plain("carol"))


@case
def handshake_twice(talk: Talk) -> None:
    talk.handshake("PLAIN")
    talk.handshake("PLAIN")


@case
def token_behind_the_old_handshake(talk: Talk) -> None:
    """Send SaslAuthenticate after a handshake of version 0, which must be followed by a bare token."""
    talk.handshake("PLAIN", 0)
    talk.token(talk.plain("carol"))


@case
def handshake_after_the_login(talk: Talk) -> None:
    talk.handshake("PLAIN")
    talk.token(talk.plain("carol"))
    talk.handshake("PLAIN")
    talk.metadata()


@case
def token_after_the_login(talk: Talk) -> None:
    talk.handshake("PLAIN")
    talk.token(talk.plain("carol"))
    talk.token(talk.plain("carol"))
    talk.metadata()


@case
def unknown_mechanism(talk: Talk) -> None:
    talk.versions()
    talk.handshake("GSSAPI")
    talk.metadata()


@case
def unknown_mechanism_of_old(talk: Talk) -> None:
    talk.handshake("NONSENSE", 0)
    talk.end()


@case
def mechanism_in_small_letters(talk: Talk) -> None:
    talk.handshake("plain")


@case
def empty_mechanism(talk: Talk) -> None:
    talk.handshake("")


@case
def tokens_of_each_version(talk: Talk) -> None:
    talk.handshake("SCRAM-SHA-256")
    talk.token(talk.begin_scram("SCRAM-SHA-256", "alice"), 0)
    talk.token(talk.finish_scram(), 1)


@case
def handshake_of_an_unknown_version(talk: Talk) -> None:
    body = struct.pack(">hhih", 17, 9, 7, -1) + b"\0\x05PLAIN"
    talk.raw(struct.pack(">i", len(body)) + body)
    talk.end()


@case
def token_of_an_unknown_version(talk: Talk) -> None:
    talk.handshake("PLAIN")
    body = struct.pack(">hhih", 36, 9, 7, -1) + b"\0\0\0\0\0"
    talk.raw(struct.pack(">i", len(body)) + body)
    talk.end()


@case
def unknown_api(talk: Talk) -> None:
    body = struct.pack(">hhih", 999, 0, 7, -1)
    talk.raw(struct.pack(">i", len(body)) + body)
    talk.end()


@case
def frame_too_large(talk: Talk) -> None:
    talk.raw(struct.pack(">i", FRAME_BYTES_MAX + 1))
    talk.end()


@case
def frame_of_negative_size(talk: Talk) -> None:
    talk.raw(struct.pack(">i", -1))
    talk.end()


@case
def token_too_large(talk: Talk) -> None:
    talk.handshake("PLAIN")
    talk.token(bytes(FRAME_BYTES_MAX))


@case
def token_that_just_fits(talk: Talk) -> None:
    """Send the largest allowed token. The limit counts the whole frame: header, length and token."""
    talk.handshake("PLAIN")
    talk.token(talk.plain("carol", "x" * (FRAME_BYTES_MAX - 25)))


@case
def garbage_behind_the_handshake(talk: Talk) -> None:
    talk.handshake("PLAIN")
    talk.raw(struct.pack(">i", 3) + b"abc")
    talk.end()


# -- PLAIN ------------------------------------------------------------------------------------------------------


def _plain(name: str, token: Callable[[Talk], bytes]) -> None:
    def now(talk: Talk) -> None:
        talk.versions()
        talk.handshake("PLAIN")
        talk.token(token(talk))
        talk.metadata()

    def of_old(talk: Talk) -> None:
        talk.handshake("PLAIN", 0)
        talk.bare(token(talk))
        talk.metadata()

    _CASES.extend((Case(f"plain_{name}", now), Case(f"plain_{name}_of_old", of_old)))


_plain("right", lambda talk: talk.plain("carol"))
_plain("wrong_password", lambda talk: talk.plain("carol", "wrong"))
_plain("unknown_user", lambda talk: talk.plain("nobody", "wrong"))
_plain("no_user", lambda talk: talk.plain("", "wrong"))
_plain("no_password", lambda talk: talk.plain("carol", ""))
_plain("own_authorization_id", lambda talk: talk.plain("carol", authorization_id="carol"))
_plain("other_authorization_id", lambda talk: talk.plain("carol", authorization_id="dave"))
_plain("other_authorization_id_and_password", lambda talk: talk.plain("carol", "x", "dave"))
_plain("two_parts", lambda _: b"carol\0carol-secret")
_plain("four_parts", lambda _: b"\0carol\0carol-secret\0")
_plain("not_utf8", lambda _: b"\0\xff\xfe\0carol-secret")
_plain("empty", lambda _: b"")
_plain("only_separators", lambda _: b"\0\0")
_plain("a_scram_message", lambda talk: talk.begin_scram("SCRAM-SHA-256", "alice"))


# -- SCRAM ------------------------------------------------------------------------------------------------------


def _scram(name: str, first: Callable[[Talk, str], bytes], final: Callable[[Talk], bytes]) -> None:
    """Register a script for both digests, and once more with bare tokens."""

    def script(mechanism: str, version: int) -> Callable[[Talk], None]:
        def hold(talk: Talk) -> None:
            talk.handshake(mechanism, version)
            for message in (lambda: first(talk, mechanism), lambda: final(talk)):
                if "closed" in talk.answers or any(
                    "message" in each and each["error"] for each in talk.answers
                ):
                    break
                (talk.bare if version == 0 else talk.token)(message())
            talk.metadata()

        return hold

    for mechanism in SCRAM:
        _CASES.append(Case(f"{mechanism}_{name}", script(mechanism, 1)))
    _CASES.append(Case(f"SCRAM-SHA-256_{name}_of_old", script(SCRAM[0], 0)))


def _message(text: str) -> Callable[[Talk, str], bytes]:
    def message(talk: Talk, mechanism: str) -> bytes:
        talk.begin_scram(mechanism, "alice")
        return text.encode()

    return message


def _alice(talk: Talk, mechanism: str) -> bytes:
    return talk.begin_scram(mechanism, "alice")


def _changed(old: str, new: str) -> Callable[[Talk], bytes]:
    return lambda talk: talk.finish_scram().replace(old.encode(), new.encode())


_scram("right", _alice, Talk.finish_scram)
_scram("odd_name", lambda talk, name: talk.begin_scram(name, "a,b=c"), Talk.finish_scram)
_scram("wrong_password", lambda talk, name: talk.begin_scram(name, "alice", "wrong"), Talk.finish_scram)
_scram("unknown_user", lambda talk, name: talk.begin_scram(name, "nobody", "wrong"), Talk.finish_scram)
_scram("own_authorization_id", _message(f"n,a=alice,n=alice,r={NONCE}"), Talk.finish_scram)
_scram("other_authorization_id", _message(f"n,a=dave,n=alice,r={NONCE}"), Talk.finish_scram)
_scram("channel_binding_unused", _message(f"y,,n=alice,r={NONCE}"), Talk.finish_scram)
_scram("channel_binding_wanted", _message(f"p=tls-unique,,n=alice,r={NONCE}"), Talk.finish_scram)
_scram("mandatory_extension", _message(f"n,,m=future,n=alice,r={NONCE}"), Talk.finish_scram)
_scram("unknown_extension", _message(f"n,,n=alice,r={NONCE},future=yes"), Talk.finish_scram)
_scram("empty_first", _message(""), Talk.finish_scram)
_scram("no_user", _message(f"n,,n=,r={NONCE}"), Talk.finish_scram)
_scram("no_nonce", _message("n,,n=alice,r="), Talk.finish_scram)
_scram("bad_escape", _message(f"n,,n=al=ice,r={NONCE}"), Talk.finish_scram)
_scram("garbage_first", _message("garbage"), Talk.finish_scram)
_scram("a_plain_token", lambda talk, _: talk.plain("carol"), Talk.finish_scram)
_scram("other_nonce", _alice, _changed("r=f", "r=g"))
_scram("shorter_nonce", _alice, lambda talk: f"c=biws,r={NONCE},p={'A' * 43}=".encode())
_scram("other_binding", _alice, _changed("c=biws", "c=eSws"))
_scram("proof_cut_short", _alice, lambda talk: talk.finish_scram()[:-12])
_scram("proof_without_base64", _alice, lambda talk: talk.finish_scram().split(b"p=")[0] + b"p=!!")
_scram("proof_of_zeros", _alice, lambda talk: talk.finish_scram().split(b"p=")[0] + b"p=AAAA")
_scram("no_proof", _alice, lambda talk: talk.finish_scram().split(b",p=")[0])
_scram("empty_final", _alice, lambda _: b"")
_scram("first_again", _alice, lambda talk: talk.begin_scram("SCRAM-SHA-256", "alice"))


@case
def scram_proof_of_the_other_digest(talk: Talk) -> None:
    """Choose one digest in the handshake and send a proof of the other."""
    talk.handshake("SCRAM-SHA-512")
    talk.token(talk.begin_scram("SCRAM-SHA-256", "alice"))
    talk.token(talk.finish_scram())


# -- OAUTHBEARER ------------------------------------------------------------------------------------------------


def _bearer(name: str, message: Callable[[Talk], bytes], second: bytes | None = None) -> None:
    def now(talk: Talk) -> None:
        talk.handshake("OAUTHBEARER")
        talk.token(message(talk))
        if second is not None:
            talk.token(second)
        talk.metadata()

    def of_old(talk: Talk) -> None:
        talk.handshake("OAUTHBEARER", 0)
        talk.bare(message(talk))
        if second is not None:
            talk.bare(second)
        talk.metadata()

    _CASES.extend((Case(f"bearer_{name}", now), Case(f"bearer_{name}_of_old", of_old)))


def _sent(token: str, authorization_id: str = "") -> bytes:
    return encode_client_message(ClientMessage(token, authorization_id))


_bearer("right", lambda talk: _sent(talk.place.issuer.token()))
_bearer("own_authorization_id", lambda talk: _sent(talk.place.issuer.token(), "alice"))
_bearer("other_authorization_id", lambda talk: _sent(talk.place.issuer.token(), "dave"), b"\x01")
_bearer("expired", lambda talk: _sent(talk.place.issuer.token(iat=1, exp=2)), b"\x01")
_bearer("other_audience", lambda talk: _sent(talk.place.issuer.token(aud="them")), b"\x01")
_bearer("other_issuer", lambda talk: _sent(talk.place.issuer.token(iss="https://them")), b"\x01")
_bearer("no_subject", lambda talk: _sent(talk.place.issuer.token(sub=None)), b"\x01")
_bearer("no_token", lambda _: _sent("not.a.token"), b"\x01")
_bearer("garbage", lambda _: b"garbage")
_bearer("empty", lambda _: b"")
_bearer("other_scheme", lambda _: b"n,,\x01auth=Basic abc\x01\x01")
_bearer("extensions", lambda talk: _sent(talk.place.issuer.token())[:-1] + b"traceId=123\x01\x01")
_bearer("reserved_extension", lambda talk: _sent(talk.place.issuer.token())[:-1] + b"auth=123\x01\x01")
_bearer("a_second_try", lambda _: _sent("not.a.token"), b"n,,\x01auth=Bearer x.y.z\x01\x01")


# -- renewals ---------------------------------------------------------------------------------------------------


def _log_in(talk: Talk) -> None:
    talk.handshake("PLAIN")
    talk.token(talk.plain("carol"))


@case_of_short
def lifetime_of_a_login(talk: Talk) -> None:
    _log_in(talk)
    talk.metadata()


@case_of_short
def lifetime_behind_a_bare_token(talk: Talk) -> None:
    talk.handshake("PLAIN", 0)
    talk.bare(talk.plain("carol"))
    talk.metadata()


@case_of_short
def lifetime_of_a_token(talk: Talk) -> None:
    """Log in with a token. The login ends with the token's lifetime or the listener's limit, whichever is shorter."""
    talk.handshake("OAUTHBEARER")
    talk.token(_sent(talk.place.issuer.token()))


@case_of_short
def renewal(talk: Talk) -> None:
    _log_in(talk)
    _log_in(talk)
    talk.metadata()


@case_of_short
def renewal_too_soon(talk: Talk) -> None:
    """Log in twice within a second."""
    _log_in(talk)
    _log_in(talk)
    talk.handshake("PLAIN")
    talk.metadata()


@case_of_short
def renewal_of_old(talk: Talk) -> None:
    """Renew a login with SaslHandshake version 0."""
    _log_in(talk)
    talk.handshake("PLAIN", 0)
    talk.bare(talk.plain("carol"))
    talk.metadata()


@case_of_short
def renewal_for_another(talk: Talk) -> None:
    _log_in(talk)
    talk.handshake("PLAIN")
    talk.token(talk.plain("dave"))
    talk.metadata()


@case_of_short
def renewal_by_another_mechanism(talk: Talk) -> None:
    _log_in(talk)
    talk.handshake("SCRAM-SHA-256")
    talk.token(talk.begin_scram("SCRAM-SHA-256", "alice"))


@case_of_short
def renewal_by_an_unknown_mechanism(talk: Talk) -> None:
    _log_in(talk)
    talk.handshake("NONSENSE")
    talk.metadata()


@case_of_short
def renewal_with_a_wrong_password(talk: Talk) -> None:
    _log_in(talk)
    talk.handshake("PLAIN")
    talk.token(talk.plain("carol", "wrong"))
    talk.metadata()


@case_of_short
def renewal_with_a_wrong_proof(talk: Talk) -> None:
    talk.handshake("SCRAM-SHA-256")
    talk.token(talk.begin_scram("SCRAM-SHA-256", "alice"))
    talk.token(talk.finish_scram())
    talk.handshake("SCRAM-SHA-256")
    talk.token(talk.begin_scram("SCRAM-SHA-256", "alice", "wrong"))
    talk.token(talk.finish_scram())


@case_of_short
def metadata_in_a_renewal(talk: Talk) -> None:
    _log_in(talk)
    talk.handshake("PLAIN")
    talk.metadata()


@case_of_short
def token_without_a_renewal(talk: Talk) -> None:
    _log_in(talk)
    talk.token(talk.plain("carol"))
    talk.metadata()


@case_of_short
def versions_in_a_renewal(talk: Talk) -> None:
    _log_in(talk)
    talk.handshake("PLAIN")
    talk.versions()


def _plaintext() -> Iterator[Case]:
    def handshake(talk: Talk) -> None:
        talk.handshake("PLAIN")
        talk.metadata()

    def token(talk: Talk) -> None:
        talk.token(b"\0carol\0carol-secret")
        talk.metadata()

    yield Case("handshake_without_sasl", handshake, "plaintext")
    yield Case("token_without_sasl", token, "plaintext")


def all_cases() -> list[Case]:
    """Return all conversations in the order in which they run."""
    return [*_CASES, *_plaintext()]
