"""Fields of messages with secrets, and configuration keys with secret values: printed forms hide them. PURE."""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["HIDDEN", "holds_secret", "is_key_name", "is_secret_key", "shown", "shown_value"]

HIDDEN: Final = "[hidden]"
"""Kafka's own word for a password."""
SECRET_FIELDS = frozenset({"auth_bytes", "hmac", "salt", "salted_password", "server_key", "stored_key"})
"""Fields that hold a secret in every message that has them. From a stored key and its salt, passwords can be guessed."""
_SECRET_KEYS = (
    "sasl.jaas.config",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.truststore.certificates",
)
"""Kafka's keys of the type `password` whose names do not show it."""
_SECRET_WORDS = ("password", "passphrase", "secret")
_SECRET_TEXT = re.compile(
    r"LoginModule|PRIVATE KEY|(?:password|passphrase|secret|jaas\.config|keystore\.key)[\w.]*\s*[=:]"
    r"|\w\.(?:[\w.]*\.)?(?:password|secret|jaas\.config|keystore\.key)\s",
    re.IGNORECASE,
)
_KEY_NAME = re.compile(r"[a-z]{1,24}|[\w-]{1,40}(?:\.[\w-]{1,40}){1,12}", re.ASCII)


def is_secret_key(key: str) -> bool:
    """True if a configuration's value is a secret by its key, also under a prefix such as `listener.name.NAME.`."""
    if key.endswith(".file"):
        # The value is where a secret is stored, not the secret.
        return False
    return key.endswith(_SECRET_KEYS) or any(word in key for word in _SECRET_WORDS)


def holds_secret(text: str) -> bool:
    """True if a text may contain a secret, under any key: a login module, a private key, another setting.

    If a line of the file ends with a backslash by mistake, the value contains the next line, too.
    """
    return _SECRET_TEXT.search(text) is not None


def shown_value(key: str, value: Any) -> Any:
    """Return a configuration's value for messages: `HIDDEN` in place of a secret."""
    if value and (is_secret_key(key) or (isinstance(value, str) and holds_secret(value))):
        return HIDDEN
    return value


def is_key_name(text: str) -> bool:
    """True if the text may be a key's name. Otherwise it may be the rest of a value, because the line before lacks
    its backslash.
    """
    return _KEY_NAME.fullmatch(text) is not None and not holds_secret(text)


def shown(structure: Any, name: str) -> Any:
    """Return a field's value for logs and tracebacks: `HIDDEN` in place of a secret."""
    value = getattr(structure, name)
    if not value:
        return value
    if name in SECRET_FIELDS:
        return HIDDEN
    if name == "value" and is_secret_key(str(getattr(structure, "name", ""))):
        return HIDDEN
    return value
