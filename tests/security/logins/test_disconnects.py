"""An operator sets a value that ends a principal's connections to a broker."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from odradek.metadata_quorum.config.config_defs import DISCONNECT_PREFIX
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.node.configuration.disconnects import Disconnects
from odradek.serving.contract import Context
from testkit.by_hand import KeptLog


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


class Broker:
    """The part of a broker that has its dynamic values."""

    def __init__(self, **demands: str) -> None:
        self.config_listeners: list[Callable[[], None]] = []
        self.log = KeptLog()
        self.config_layers = BrokerConfigLayers({})
        self.demand(**demands)

    def demand(self, own: dict[str, str] | None = None, **of_all: str) -> None:
        """Set the values of all brokers, and of this one."""
        self.config_layers = BrokerConfigLayers({}, _keys(own or {}), _keys(of_all))
        for each in self.config_listeners:
            each()


def _keys(demands: dict[str, str]) -> dict[str, str]:
    return {f"{DISCONNECT_PREFIX}User:{name}": value for name, value in demands.items()}


def test_a_new_value_closes_and_an_old_one_does_not() -> None:
    """A new value closes the principal's connections.

    A value from before the start, or a value that is kept or removed, closes none.
    """
    broker = Broker(alice="1")
    alice, again, bob = Connection("User:alice"), Connection("User:alice"), Connection("User:bob")
    servers = [Server([alice, bob]), Server([again])]
    Disconnects(broker, servers)  # type: ignore[arg-type]  # a broker of these fields alone
    broker.demand(alice="1")
    assert alice.is_open
    broker.demand(alice="2")
    assert [each.is_open for each in (alice, again, bob)] == [False, False, True]
    assert broker.log.events == ["connections.disconnected"]
    assert broker.log.fields == [{"principal": "User:alice", "count": 2}]
    late = Connection("User:alice")
    servers[0].connections.append(late)
    broker.demand()
    broker.demand(bob="3")
    assert late.is_open
    assert not bob.is_open


def test_one_broker_can_be_told_alone() -> None:
    """A value of this broker alone takes precedence over the value for all brokers."""
    broker = Broker()
    alice = Connection("User:alice")
    Disconnects(broker, [Server([alice])])  # type: ignore[arg-type]  # a broker of these fields alone
    broker.demand(own={"alice": "1"})
    assert not alice.is_open
