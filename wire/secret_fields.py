"""Fields of messages that hold secrets, and keys of configurations whose values do: nothing that prints shows them. PURE."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["HIDDEN", "is_secret_key", "shown"]

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
"""Kafka's keys of the type `password` whose names do not say so."""
_SECRET_WORDS = ("password", "passphrase", "secret")


def is_secret_key(key: str) -> bool:
    """True if a configuration's value is a secret by its key, also under a prefix such as `listener.name.NAME.`."""
    if key.endswith(".file"):
        # The place of a secret.
        return False
    return key.endswith(_SECRET_KEYS) or any(word in key for word in _SECRET_WORDS)


def shown(structure: Any, name: str) -> Any:
    """A field's value for logs and tracebacks: `HIDDEN` in place of a secret."""
    value = getattr(structure, name)
    if not value:
        return value
    if name in SECRET_FIELDS:
        return HIDDEN
    if name == "value" and is_secret_key(str(getattr(structure, "name", ""))):
        return HIDDEN
    return value
