"""Lists the message fields and configuration keys that hold secrets, so that logs and messages hide their
values. PURE.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["HIDDEN", "holds_secret", "is_key_name", "is_secret_key", "shown", "shown_value"]

HIDDEN: Final = "[hidden]"
"""The text that replaces a secret. Kafka hides passwords by the same text."""
SECRET_FIELDS = frozenset({"auth_bytes", "hmac", "salt", "salted_password", "server_key", "stored_key"})
"""The names of message fields that always contain a secret. Even a stored key with its salt is secret,
because it allows others to guess the password.
"""
_SECRET_KEYS = (
    "sasl.jaas.config",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.truststore.certificates",
)
"""Configuration keys of Kafka's type `password` that contain none of the words in `_SECRET_WORDS`."""
_SECRET_WORDS = ("password", "passphrase", "secret")
_SECRET_TEXT = re.compile(
    r"LoginModule|PRIVATE KEY|(?:password|passphrase|secret|jaas\.config|keystore\.key)[\w.]*\s*[=:]"
    r"|\w\.(?:[\w.]*\.)?(?:password|secret|jaas\.config|keystore\.key)\s",
    re.IGNORECASE,
)
_KEY_NAME = re.compile(r"[a-z]{1,24}|[\w-]{1,40}(?:\.[\w-]{1,40}){1,12}", re.ASCII)


def is_secret_key(key: str) -> bool:
    """True if the value of this configuration key is a secret. The key may have a prefix such as
    `listener.name.NAME.`.
    """
    if key.endswith(".file"):
        # The value of such a key names the place where a secret is stored, not the secret itself.
        return False
    return key.endswith(_SECRET_KEYS) or any(word in key for word in _SECRET_WORDS)


def holds_secret(text: str) -> bool:
    """True if a configuration value may contain a secret, whatever its key: a login module, a private key, or
    another setting.

    Any value may contain a secret, because a line of the configuration file may end with a backslash by
    mistake. The value then also contains the next line.
    """
    return _SECRET_TEXT.search(text) is not None


def shown_value(key: str, value: Any) -> Any:
    """Return a configuration's value as a log or message may show it: `HIDDEN` in place of a secret."""
    if value and (is_secret_key(key) or (isinstance(value, str) and holds_secret(value))):
        return HIDDEN
    return value


def is_key_name(text: str) -> bool:
    """True if a message may quote this text as a configuration key.

    If a line of a properties file lacks the backslash at its end, the rest of a secret value is read as a
    key. So only a text that has the form of a key, and shows no sign of a secret, may be quoted.
    """
    return _KEY_NAME.fullmatch(text) is not None and not holds_secret(text)


def shown(structure: Any, name: str) -> Any:
    """Return the value of a structure's field as logs and tracebacks may show it: `HIDDEN` in place of a
    secret.
    """
    value = getattr(structure, name)
    if not value:
        return value
    if name in SECRET_FIELDS:
        return HIDDEN
    if name == "value" and is_secret_key(str(getattr(structure, "name", ""))):
        return HIDDEN
    return value
