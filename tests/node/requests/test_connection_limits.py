"""Limits on the connections that a node accepts."""

from __future__ import annotations

import pytest

from odradek.data_plane.quotas.address_rates import AddressRates
from odradek.metadata_quorum.config.config_defs import ConfigError
from odradek.metadata_quorum.config.config_values import parse_overrides
from odradek.node.connections.connection_limits import INT_MAX, ConnectionLimits, client_room


def test_no_more_than_all_connections() -> None:
    """At `max.connections`, further connections are refused."""
    limits = ConnectionLimits(connections_max=2)
    assert limits.enter("a")
    assert limits.enter("b")
    assert not limits.enter("c")
    limits.leave("a")
    assert limits.enter("c")
    assert limits.statistics() == {"connections": 2, "addresses": 2}


def test_no_more_than_the_connections_of_one_address() -> None:
    """`max.connections.per.ip` limits each address. An override for an address may be lower or higher."""
    limits = ConnectionLimits(per_ip_max=1, per_ip_overrides={"b": 2, "c": 0})
    assert [limits.enter("a"), limits.enter("a")] == [True, False]
    assert [limits.enter("b"), limits.enter("b"), limits.enter("b")] == [True, True, False]
    assert not limits.enter("c")
    limits.leave("a")
    assert limits.enter("a")


def test_a_limit_that_changes_spares_open_connections() -> None:
    """If a limit is lowered, open connections stay, and new ones are refused until there is room (KIP-402)."""
    limits = ConnectionLimits()
    assert all(limits.enter("a") for _ in range(3))
    limits.per_ip_max = 2
    assert not limits.enter("a")
    limits.leave("a")
    assert not limits.enter("a")
    limits.leave("a")
    assert limits.enter("a")


def test_no_more_than_so_many_in_a_second() -> None:
    """Connections beyond `max.connection.creation.rate` are accepted later, not refused (KIP-612)."""
    limits = ConnectionLimits(creation_rate_max=2)
    for _ in range(2):
        assert limits.accept_at(10.0) == 10.0
        assert limits.enter("a")
    assert limits.accept_at(10.5) == 11.0
    assert limits.accept_at(11.0) == 11.0


def test_the_rate_of_all_is_not_the_peers() -> None:
    """Connections of brokers do not count for the broker-wide rate, but their listener may have its own rate
    (KIP-612)."""
    limits = ConnectionLimits(creation_rate_max=1, listener_creation_rate_max={"PEERS": 2})
    assert limits.enter("a", "CLIENTS")
    assert limits.accept_at(0.5, "CLIENTS") == 1.0
    for _ in range(2):
        assert limits.accept_at(0.5, "PEERS", is_peers=True) == 0.5
        assert limits.enter("b", "PEERS", is_peers=True)
    assert limits.accept_at(0.5, "PEERS", is_peers=True) == 1.0
    assert limits.accept_at(1.5, "CLIENTS") == 1.5


def test_a_listener_has_limits_of_its_own() -> None:
    """`listener.name.NAME.max.connections` limits a single listener, so that it cannot use up the broker's limit
    (KIP-402)."""
    limits = ConnectionLimits(connections_max=3, listener_connections_max={"A": 1})
    assert [limits.enter("x", "A"), limits.enter("x", "A")] == [True, False]
    assert [limits.enter("x", "B") for _ in range(3)] == [True, True, False]
    limits.leave("x", "A")
    assert limits.enter("x", "A")


class _Client:
    """A client's connection that may be closed in favour of a peer."""

    def __init__(self, last_active: float) -> None:
        self.last_active = last_active
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_the_idlest_client_gives_way_to_a_peer() -> None:
    """At `max.connections` a peer is still accepted, and the client connection that was idle longest is closed
    (KIP-402)."""
    clients = [_Client(3.0), _Client(1.0), _Client(2.0)]
    limits = ConnectionLimits(connections_max=4)
    limits.yielding.append(lambda: (each for each in clients if not each.is_closed))
    assert all(limits.enter("c", "CLIENTS") for _ in clients)
    assert limits.enter("p", "PEERS", is_peers=True)
    assert not any(each.is_closed for each in clients)
    assert not limits.enter("c", "CLIENTS")
    assert limits.enter("p", "PEERS", is_peers=True)
    assert [each.is_closed for each in clients] == [False, True, False]


def test_overrides_are_read_as_kafka_writes_them() -> None:
    """Overrides are `host:count`, separated by commas. An IPv6 address may contain colons."""
    assert parse_overrides("") == {}
    assert parse_overrides("10.0.0.1:5, ::2:7") == {"10.0.0.1": 5, "::2": 7}
    assert parse_overrides("localhost:3") == {"127.0.0.1": 3, "::1": 3}
    with pytest.raises(ConfigError, match="is not host:count"):
        parse_overrides("10.0.0.1:many")


def test_descriptors_are_kept_for_logs_and_peers() -> None:
    """Clients may use three quarters of the open-file limit, less the node's own need. Brokers' connections do not
    count."""
    assert client_room(1024) == 1024 - 256 - 64
    assert client_room(-1) == INT_MAX
    assert client_room(64) > 0
    limits = ConnectionLimits(room=2)
    assert [limits.enter("a"), limits.enter("a"), limits.enter("a")] == [True, True, False]
    assert limits.enter("b", is_peers=True)
    limits.leave("a")
    assert limits.enter("a")
    limits.leave("b", is_peers=True)
    assert not limits.enter("a")
    assert limits.statistics() == {"connections": 2, "addresses": 1}


def test_a_refusal_names_the_limit_that_is_reached() -> None:
    """A refusal records the name and value of the limit that was reached."""
    addresses = AddressRates(burst_seconds=10.0)
    addresses.set_quota("d", 0.1)
    limits = ConnectionLimits(
        connections_max=3, per_ip_max=1, listener_connections_max={"SMALL": 0}, addresses=addresses
    )
    assert limits.enter("d")
    limits.leave("d")
    assert not limits.enter("d")
    assert limits.refused_by == ("connection_creation_rate", 0.1)
    assert limits.enter("a")
    assert not limits.enter("a")
    assert limits.refused_by == ("max.connections.per.ip", 1)
    assert not limits.enter("b", "SMALL")
    assert limits.refused_by == ("max.connections of SMALL", 0)
    assert limits.enter("b")
    assert limits.enter("c")
    assert not limits.enter("e")
    assert limits.refused_by == ("max.connections", 3)
    limits.connections_max, limits.room = INT_MAX, 3
    assert not limits.enter("e")
    assert limits.refused_by == ("open files", 3)
