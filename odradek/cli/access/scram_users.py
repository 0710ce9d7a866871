"""SCRAM users in the form of command options: `SCRAM-SHA-512=[name=alice,password=...]`. Passwords are read
without being shown.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import getpass
import os
import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.cli.failure import USAGE, CliError
from odradek.cli.parsing import whole_number
from odradek.cli.streams.standard_streams import complain

if TYPE_CHECKING:
    from odradek.security.scram import ScramMechanism
    from odradek.wire.messages.metadata_records import UserScramCredentialRecord

__all__ = [
    "DEFAULT_ITERATIONS",
    "DEFAULT_MECHANISM",
    "read_password",
    "record_of_password",
    "scram_record",
    "warn_of_readers",
]

DEFAULT_MECHANISM = "SCRAM-SHA-512"
DEFAULT_ITERATIONS = 4096
"""Kafka's default number of iterations. A broker also answers with this number if a user does not exist. So
the number does not reveal which users exist.
"""
_FORM = re.compile(r"(?P<mechanism>[A-Za-z0-9-]+)=\[(?P<parts>.*)\]\Z", re.DOTALL)
_PARTS = ("name", "password", "passwordfile", "salt", "saltedpassword", "iterations")
_PART = re.compile(rf"({'|'.join(_PARTS)})=")


def scram_record(text: str, random_salt: bytes) -> UserScramCredentialRecord:
    """Make the record of a user from the text of `--add-scram`. Raises `CliError`, whose message never
    contains a password.
    """
    from odradek.security.scram import MECHANISMS

    match = _FORM.match(text)
    if match is None:
        raise CliError("--add-scram must have the form MECHANISM=[name=USER,password=PASSWORD]", USAGE)
    mechanism = MECHANISMS.get(match["mechanism"].upper())
    if mechanism is None:
        raise CliError(f"--add-scram must name one of the mechanisms {', '.join(MECHANISMS)}", USAGE)
    parts = _parts(match["parts"])
    name = parts.get("name", "")
    if not name:
        raise CliError("--add-scram lacks name=USER", USAGE)
    iterations = _iterations(parts)
    salt = _base64(parts, "salt") or random_salt
    salted = _base64(parts, "saltedpassword")
    if salted is None:
        return record_of_password(name, _password(parts), mechanism.name, salt, iterations)
    if "salt" not in parts:
        raise CliError("--add-scram has a saltedpassword, but no salt", USAGE)
    return _record(name, mechanism, salted, salt, iterations)


def record_of_password(
    name: str, password: str, mechanism: str, salt: bytes, iterations: int = DEFAULT_ITERATIONS
) -> UserScramCredentialRecord:
    """Make the record of a user with this password. `mechanism` is one of `scram.MECHANISMS`, and `salt` has 16
    or more random bytes.
    """
    from odradek.security.scram import MECHANISMS

    known = MECHANISMS[mechanism]
    return _record(name, known, known.salted_password(password, salt, iterations), salt, iterations)


def _record(
    name: str, mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> UserScramCredentialRecord:
    from odradek.security.scram import server_keys
    from odradek.wire.messages.metadata_records import UserScramCredentialRecord

    keys = server_keys(mechanism, salted, salt, iterations)
    return UserScramCredentialRecord(
        name, mechanism.number, keys.salt, keys.stored_key, keys.server_key, keys.iterations
    )


def _parts(text: str) -> dict[str, str]:
    """Split the text into its named parts. A value ends before a comma that is followed by another name, so a
    password may have commas.
    """
    starts = [each for each in _PART.finditer(text) if each.start() == 0 or text[each.start() - 1] == ","]
    if not starts or starts[0].start():
        raise CliError(f"--add-scram must have parts of {', '.join(_PARTS)}, separated by commas", USAGE)
    ends = [each.start() - 1 for each in starts[1:]] + [len(text)]
    return {each[1]: text[each.end() : end].strip('"') for each, end in zip(starts, ends, strict=True)}


def _iterations(parts: dict[str, str]) -> int:
    from odradek.security.scram import ITERATIONS_MAX, ITERATIONS_MIN

    text = parts.get("iterations", str(DEFAULT_ITERATIONS))
    try:
        return whole_number(text, ITERATIONS_MIN, ITERATIONS_MAX)
    except argparse.ArgumentTypeError:
        raise CliError(
            f"--add-scram: iterations must be a number from {ITERATIONS_MIN} to {ITERATIONS_MAX}", USAGE
        ) from None


def _base64(parts: dict[str, str], name: str) -> bytes | None:
    try:
        return base64.b64decode(parts[name], validate=True) if name in parts else None
    except (binascii.Error, ValueError):
        raise CliError(f"--add-scram: {name} is not base64", USAGE) from None


def _password(parts: dict[str, str]) -> str:
    password = parts.get("password")
    if "passwordfile" in parts:
        password = read_password(parts["passwordfile"])
    if not password:
        raise CliError("--add-scram must give password, passwordfile or saltedpassword", USAGE)
    return password


def read_password(path: str | None) -> str:
    """Read a password from a file (`-`: the first line of standard input), or from the terminal, typed twice.

    Raises `CliError`.
    """
    if path is not None:
        try:
            data = sys.stdin.buffer.readline() if path == "-" else Path(path).read_bytes()
            text = data.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise CliError(f"cannot read a password from {path}: {error}") from error
        password = text.rstrip("\r\n")
        if path != "-":
            warn_of_readers(path, "a password")
    elif not sys.stdin.isatty():
        raise CliError(
            "a password cannot be typed here, because standard input is not a terminal: give "
            "--password-file FILE, or - to read it from standard input",
            USAGE,
        )
    else:
        password = _typed("password: ")
        if _typed("again: ") != password:
            raise CliError("the two passwords that were typed differ")
    if not password:
        raise CliError("the password is empty")
    return password


def warn_of_readers(path: str, secret: str) -> None:
    """Print a warning if every user of this machine can read the file `path`. `secret` names the secret in the file."""
    if Path(path).stat().st_mode & stat.S_IROTH:
        complain(f"every user of this machine may read {path}, which has {secret}: run chmod o= {path}")


def _typed(prompt: str) -> str:
    """Read a password from the terminal. Raises `CliError`."""
    try:
        # Bytes that the locale cannot decode arrive as lone surrogates; they may still be valid UTF-8.
        return os.fsencode(getpass.getpass(prompt)).decode()
    except EOFError:
        raise CliError("no password was typed") from None
    except UnicodeError:
        raise CliError("the typed password is not text in UTF-8") from None
