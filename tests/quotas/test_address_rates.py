"""The rate of new connections from one address (KIP-612)."""

from __future__ import annotations

import pytest

from odradek.data_plane.quotas import address_rates
from odradek.data_plane.quotas.address_rates import ADDRESSES_MAX, AddressRates
from odradek.data_plane.quotas.client_quotas import ClientQuotas, QuotaSettings
from odradek.metadata_quorum.quotas.quota_levels import Entity
from odradek.node.connections.connection_limits import ConnectionLimits

RATE = "connection_creation_rate"


def of(address: str) -> Entity:
    return (("ip", address),)


def test_an_address_has_a_burst_and_then_its_rate() -> None:
    """KIP-612: an address that connects more often than its quota allows is turned away, and other addresses
    are not."""
    rates = AddressRates(burst_seconds=10.0)
    rates.set_quota("10.0.0.1", 2.0)
    assert sum(rates.admits("10.0.0.1", 0.0) for _ in range(100)) == 20
    assert sum(rates.admits("10.0.0.1", 5.0) for _ in range(100)) == 10
    assert all(rates.admits("10.0.0.2", 0.0) for _ in range(100))
    assert rates.refused == 170


def test_the_default_is_for_each_address_without_a_quota_of_its_own() -> None:
    """KIP-612: the default quota applies to each address separately, unless the address has its own quota."""
    rates = AddressRates(burst_seconds=1.0)
    rates.set_quota(None, 1.0)
    rates.set_quota("10.0.0.1", 5.0)
    assert sum(rates.admits("10.0.0.1", 0.0) for _ in range(10)) == 5
    assert sum(rates.admits("10.0.0.2", 0.0) for _ in range(10)) == 1
    assert sum(rates.admits("10.0.0.3", 0.0) for _ in range(10)) == 1
    rates.set_quota(None, None)
    rates.set_quota("10.0.0.1", None)
    assert all(rates.admits("10.0.0.1", 0.0) for _ in range(10))


def test_a_change_parses_only_the_addresses_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of quotas only the changed addresses are parsed again, and their new quota applies at once."""
    quotas = ClientQuotas(QuotaSettings(windows=2, window_seconds=1))
    given = {(of(f"10.0.{number >> 8}.{number & 255}"), RATE): 2.0 for number in range(1000)}
    rates = quotas.addresses
    parsed: list[str] = []
    parse = address_rates._as_peers_say_it
    monkeypatch.setattr(address_rates, "_as_peers_say_it", lambda text: parsed.append(text) or parse(text))
    quotas.apply(given)
    assert len(parsed) == len(given)
    parsed.clear()
    of_ann = ((("user", "ann"),), "producer_byte_rate")
    quotas.apply({**given, of_ann: 1.0}, [of_ann])
    assert not parsed
    assert sum(rates.admits("10.0.0.1", 0.0) for _ in range(10)) == 2
    changed = (of("10.0.0.1"), RATE)
    quotas.apply({**given, of_ann: 1.0, changed: 5.0}, [changed])
    assert parsed == ["10.0.0.1"]
    assert rates.admits("10.0.0.1", 100.0)
    assert sum(rates.admits("10.0.0.1", 200.0) for _ in range(10)) == 5
    quotas.apply({})
    assert all(rates.admits("10.0.0.1", 200.0) for _ in range(10))


def test_an_address_may_be_written_in_several_ways() -> None:
    """KIP-612: the quota of an address applies in whatever form an operator has written the address."""
    for written, peer in (
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("no address", "no address"),
    ):
        rates = AddressRates(burst_seconds=1.0)
        rates.set_quota(written, 1.0)
        assert [rates.admits(peer, 0.0), rates.admits(peer, 0.0)] == [True, False]
    rates = AddressRates(burst_seconds=1.0)
    rates.set_quota("10.0.0.1", 3.0)
    rates.set_quota("::ffff:10.0.0.1", 2.0)
    assert rates.rate("10.0.0.1") == 2.0
    rates.set_quota("::ffff:10.0.0.1", None)
    assert rates.rate("10.0.0.1") == 3.0


def test_endless_addresses_cost_no_memory() -> None:
    """The number of addresses with a bucket is limited, whatever number of addresses connects."""
    rates = AddressRates(burst_seconds=1.0)
    rates.set_quota(None, 1.0)
    for number in range(ADDRESSES_MAX + 100):
        assert rates.admits(f"10.{number}", 0.0)
    assert len(rates._buckets) == ADDRESSES_MAX


def test_brokers_own_listener_is_exempt() -> None:
    """Connections of other nodes are accepted, whatever the quotas of clients are."""
    limits = ConnectionLimits(addresses=AddressRates(burst_seconds=1.0))
    assert limits.addresses is not None
    limits.addresses.set_quota(None, 1.0)
    assert limits.enter("10.0.0.1")
    assert not limits.enter("10.0.0.1")
    assert limits.enter("10.0.0.1", "BROKERS", is_peers=True)
