"""The forms in which options and files name the users of rules and the limits of quotas."""

from __future__ import annotations

import argparse

from odradek.cli.moves.plans import byte_count
from odradek.cli.parsing import decimal

__all__ = ["DEFAULT", "LIMITS", "LIMITS_OF_BYTES", "limit_of", "principal_of"]

LIMITS = {
    "produce-rate": ("producer_byte_rate", "bytes per second that clients may produce"),
    "fetch-rate": ("consumer_byte_rate", "bytes per second that clients may fetch"),
    "request-percentage": ("request_percentage", "processor time of the broker: 100 is one core"),
    "mutation-rate": ("controller_mutation_rate", "partitions per second that clients may create and delete"),
    "connection-rate": ("connection_creation_rate", "connections per second from an address (--ip)"),
}
"""The limits that a quota can set, by our name. Each value has Kafka's key, and a text about the limit."""
LIMITS_OF_BYTES = ("produce-rate", "fetch-rate")
DEFAULT = "<default>"
"""The name that stands for all users, clients or addresses without a quota of their own."""


def principal_of(user: str) -> str:
    """Return the principal of a user. The user is given by a name alone, or as TYPE:NAME."""
    return user if ":" in user else f"User:{user}"


def limit_of(name: str, text: str) -> float:
    """Parse the value of a limit: bytes with or without a unit (10000000, 10M), or a number above 0.

    Infinity counts as a number, because Kafka accepts it for quotas of type double. Raises
    `argparse.ArgumentTypeError`.
    """
    if name in LIMITS_OF_BYTES:
        return float(byte_count(text))
    number = float("inf") if text.lower() in ("inf", "infinity") else decimal(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
