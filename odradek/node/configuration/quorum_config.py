"""The keys of a properties file about roles and the quorum, such as `process.roles` and `controller.quorum.voters`."""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from odradek.metadata_quorum.config.config_defs import ConfigError, InvalidConfiguration

__all__ = ["BROKER", "CONTROLLER", "StaticVoter", "check_voters", "parse_quorum", "parse_roles"]

BROKER = "broker"
CONTROLLER = "controller"
_HOST_PORT = re.compile(r"\[?([0-9a-zA-Z\-%._:]*?)\]?:([0-9]+)\Z")
_VOTER = re.compile(r"([0-9]+)@\[?([0-9a-zA-Z\-%._:]*?)\]?:([0-9]+)\Z")


@attrs.frozen
class StaticVoter:
    """A voter in `controller.quorum.voters`, which is written as `id@host:port`."""

    node_id: int
    host: str
    port: int


def parse_roles(roles: Sequence[str]) -> tuple[str, ...]:
    """Return the roles if they are valid. Raises `ConfigError` for an unknown, repeated or missing role."""
    key = "process.roles"
    text = ",".join(roles)
    if not roles:
        raise ConfigError(key, text, "name at least one of broker, controller")
    for role in roles:
        if role not in (BROKER, CONTROLLER):
            raise ConfigError(key, role, "Only 'broker' and 'controller' are allowed roles")
    if len(set(roles)) != len(roles):
        raise ConfigError(key, text, "Duplicate role names are not allowed")
    return tuple(roles)


def parse_quorum(
    texts: Sequence[str], servers: Sequence[str]
) -> tuple[tuple[StaticVoter, ...], tuple[tuple[str, int], ...]]:
    """Parse the static voters, and (host, port) of the bootstrap servers. Raises `ConfigError`."""
    key = "controller.quorum.voters"
    if not texts and not servers:
        raise InvalidConfiguration(
            "controller.quorum.bootstrap.servers",
            "",
            "If using process.roles, either controller.quorum.bootstrap.servers must contain the set of bootstrap "
            "controllers or controller.quorum.voters must contain a parseable set of controllers.",
        )
    voters = []
    for text in texts:
        match = _VOTER.match(text)
        if match is None or not 0 < int(match[3]) <= 65535:
            raise ConfigError(
                key, text, "the value must be ID@host:port, or several of these, separated by commas"
            )
        voters.append(StaticVoter(int(match[1]), match[2], int(match[3])))
    if len({voter.node_id for voter in voters}) != len(voters):
        raise ConfigError(key, ",".join(texts), "Each voter must have a different id")
    found = []
    for text in servers:
        match = _HOST_PORT.match(text)
        if match is None or not match[1] or not 0 < int(match[2]) <= 65535:
            raise ConfigError(
                "controller.quorum.bootstrap.servers",
                text,
                "the value must be host:port, or several of these, separated by commas",
            )
        found.append((match[1], int(match[2])))
    return tuple(voters), tuple(found)


def check_voters(roles: tuple[str, ...], voters: tuple[StaticVoter, ...], node_id: int) -> None:
    """Raise `ConfigError` if roles, node id and static voters break one of Kafka's rules."""
    if not voters:
        return
    key = "controller.quorum.voters"
    text = ",".join(f"{voter.node_id}@{voter.host}:{voter.port}" for voter in voters)
    ids = [voter.node_id for voter in voters]
    if CONTROLLER in roles and node_id not in ids:
        raise ConfigError(
            key,
            text,
            f"If process.roles contains the 'controller' role, the node id {node_id} must be included in the set of voters",
        )
    if CONTROLLER not in roles and node_id in ids:
        raise ConfigError(
            key,
            text,
            f"If process.roles contains just the 'broker' role, the node id {node_id} must not be included in the set "
            "of voters",
        )
