"""Connections that an operator ends: which demand closes which connections of a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from odradek.metadata_quorum.config.config_defs import DISCONNECT_PREFIX
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.node.configuration.disconnects import Disconnects
from odradek.serving.contract import Context


class Connection:
    def __init__(self, principal: str) -> None:
        self.context = Context("SASL", "127.0.0.1")
        self.context.principal = principal
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


@attrs.define
class Server:
    connections: list[Connection]


class Told:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


class Broker:
    """The part of a broker that has its dynamic values."""

    def __init__(self, **demands: str) -> None:
        self.config_listeners: list[Callable[[], None]] = []
        self.log = Told()
        self.config_layers = BrokerConfigLayers({})
        self.demand(**demands)

    def demand(self, own: dict[str, str] | None = None, **of_all: str) -> None:
        """Take over other values for all brokers, and for this one."""
        self.config_layers = BrokerConfigLayers({}, _keys(own or {}), _keys(of_all))
        for each in self.config_listeners:
            each()


def _keys(demands: dict[str, str]) -> dict[str, str]:
    return {f"{DISCONNECT_PREFIX}User:{name}": value for name, value in demands.items()}


def test_a_new_value_closes_and_an_old_one_does_not() -> None:
    """What stood in the log at the start is over; a value that stays, or goes, closes nothing."""
    broker = Broker(alice="1")
    alice, again, bob = Connection("User:alice"), Connection("User:alice"), Connection("User:bob")
    servers = [Server([alice, bob]), Server([again])]
    Disconnects(broker, servers)  # type: ignore[arg-type]  # a broker of these fields alone
    broker.demand(alice="1")
    assert alice.is_open
    broker.demand(alice="2")
    assert [each.is_open for each in (alice, again, bob)] == [False, False, True]
    assert broker.log.lines == [{"event": "connections.disconnected", "principal": "User:alice", "count": 2}]
    late = Connection("User:alice")
    servers[0].connections.append(late)
    broker.demand()
    broker.demand(bob="3")
    assert late.is_open
    assert not bob.is_open


def test_one_broker_can_be_told_alone() -> None:
    """A value of the broker's own takes the place of that for all."""
    broker = Broker()
    alice = Connection("User:alice")
    Disconnects(broker, [Server([alice])])  # type: ignore[arg-type]  # a broker of these fields alone
    broker.demand(own={"alice": "1"})
    assert not alice.is_open
