"""Our own keys for user names and passwords, with secrets in files, as an alternative to Kafka's login modules. PURE.

`odradek.sasl.username` and `odradek.sasl.password.file` are for logins to other nodes.
`odradek.sasl.plain.users.file` names a file with the users of PLAIN, as lines of NAME=PASSWORD. Each key may have the
prefix `listener.name.NAME.`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from odradek.metadata_quorum.config.config_defs import ConfigError, InvalidConfiguration
from odradek.metadata_quorum.config.java_properties import MalformedProperties, parse_properties

__all__ = [
    "FILE_KEYS",
    "OWN_LOGIN_KEYS",
    "PASSWORD_FILE",
    "USERNAME",
    "USERS_FILE",
    "own_login",
    "own_users",
    "read_secrets",
]

USERNAME = "odradek.sasl.username"
PASSWORD_FILE = "odradek.sasl.password.file"
USERS_FILE = "odradek.sasl.plain.users.file"
FILE_KEYS = (PASSWORD_FILE, USERS_FILE)
OWN_LOGIN_KEYS = (USERNAME, *FILE_KEYS)
HIDDEN = "[hidden]"


def read_secrets(explicit: Mapping[str, str], read: Callable[[str], str]) -> dict[str, str]:
    """Read the files that the keys name; return their contents by key. Raises `ConfigError` for an unreadable file."""
    found = {}
    for key, path in explicit.items():
        if key.endswith(FILE_KEYS) and path:
            try:
                found[key] = read(path)
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise ConfigError(key, path, f"the file cannot be read ({reason})") from None
    return found


def own_login(
    place: Callable[[str], str], explicit: Mapping[str, str], secrets: Mapping[str, str]
) -> tuple[str, str] | None:
    """Return username and password for logins to other nodes; None if neither is set. Raises `ConfigError`.

    `place` returns a key's full name in the file.
    """
    name_key, password_key = place(USERNAME), place(PASSWORD_FILE)
    username, password = explicit.get(name_key, ""), secrets.get(password_key)
    if not username and password is None:
        return None
    if not username or password is None:
        missing = password_key if username else name_key
        raise InvalidConfiguration(
            missing, None, f"{missing} is missing: {USERNAME} and {PASSWORD_FILE} must be set together"
        )
    password = password.removesuffix("\n").removesuffix("\r")
    if not password:
        raise ConfigError(password_key, explicit[password_key], "the file must contain a password")
    return username, password


def own_users(
    place: Callable[[str], str], explicit: Mapping[str, str], secrets: Mapping[str, str]
) -> Mapping[str, str] | None:
    """Read the passwords of PLAIN's users by name; None if no file is named. Raises `ConfigError`, whose text shows
    nothing of the file.
    """
    key = place(USERS_FILE)
    text = secrets.get(key)
    if text is None:
        return None
    try:
        users = parse_properties(text)
    except MalformedProperties:
        users = {}
    if not users or not all(users.values()) or "" in users:
        raise ConfigError(key, explicit[key], "the file must have lines of NAME=PASSWORD")
    return users
