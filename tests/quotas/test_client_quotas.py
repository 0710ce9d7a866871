"""Accounts of clients: which clients share an account, how many accounts there are, and when they are dropped."""

from __future__ import annotations

import pytest

from odradek.data_plane.quotas.client_quotas import IDLE_SECONDS_MAX, ClientQuotas, QuotaSettings
from odradek.metadata_quorum.quotas.quota_levels import REQUEST_PERCENTAGE, USER, Entity
from odradek.serving.steps import SLICE_UNITS, run_through

PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
OF_ANN: Entity = (("user", "ann"),)
OF_EACH_CLIENT: Entity = (("client-id", None),)


def quotas(values: dict[tuple[Entity, str], float], accounts_max: int = 100) -> ClientQuotas:
    made = ClientQuotas(QuotaSettings(11, 1), accounts_max)
    made.apply(values)
    return made


def test_connections_of_a_user_share_one_account() -> None:
    """KIP-55: all connections of a user share one account, whatever their client ids are."""
    made = quotas({(OF_ANN, PRODUCE): 1000.0})
    first = made.share_of("User:ann", "a", 0.0)
    second = made.share_of("User:ann", "b", 0.0)
    assert first.produce is second.produce is not None
    assert first.fetch is None
    assert first.produce.charge(10_000, 0.0) == 0.0, "a burst of ten windows"
    assert second.produce.charge(500, 0.0) == 0.5


def test_a_default_gives_each_client_an_account_of_its_own() -> None:
    """KIP-13: under a default quota each client has an account of its own."""
    made = quotas({(OF_EACH_CLIENT, FETCH): 1000.0})
    first, second = (made.share_of("User:ann", name, 0.0) for name in "ab")
    assert first.fetch is not None
    assert second.fetch is not None
    first.fetch.charge(50_000, 0.0)
    assert second.fetch.wait_seconds(0.0) == 0.0
    assert first.fetch_bytes_max == 1000


def test_a_hundred_percent_are_one_core() -> None:
    """A request percentage of 100 is the CPU time of one core. A wait lasts one window at most."""
    share = quotas({(OF_ANN, REQUEST): 50.0}).share_of("User:ann", None, 0.0)
    assert share.request is not None
    share.request.charge(5.25, 0.0)
    assert share.request_wait(0.0) == 0.5
    share.request.charge(100.0, 0.0)
    assert share.request_wait(0.0) == 1.0


def test_a_changed_value_holds_at_once_and_the_use_is_kept() -> None:
    """A changed quota applies at once, and the account keeps its debt."""
    made = quotas({(OF_ANN, PRODUCE): 1000.0})
    share = made.share_of("User:ann", None, 0.0)
    assert share.produce is not None
    share.produce.charge(11_000, 0.0)
    made.apply({(OF_ANN, PRODUCE): 500.0})
    assert share.generation != made.generation
    again = made.share_of("User:ann", None, 0.0)
    assert again.produce is share.produce
    assert again.produce.wait_seconds(0.0) == 2.0
    made.apply({})
    assert made.share_of("User:ann", None, 0.0).produce is None
    assert not made.is_charging


def test_a_change_of_another_quota_leaves_a_debt_as_it_is() -> None:
    """A change of another quota leaves an account's debt as it is, even if it is larger than one burst."""
    made = quotas({(OF_ANN, PRODUCE): 1000.0})
    share = made.share_of("User:ann", None, 0.0)
    assert share.produce is not None
    share.produce.charge(1_010_000, 0.0)
    for number in range(3):
        made.apply({(OF_ANN, PRODUCE): 1000.0, (OF_EACH_CLIENT, FETCH): 5.0 + number})
        again = made.share_of("User:ann", None, 0.0).produce
        assert again is share.produce
        assert again.wait_seconds(0.0) == 1000.0


def test_a_change_of_quotas_looks_at_accounts_in_slices() -> None:
    """A change of quotas updates the accounts in slices. An account that is used meanwhile has its new quota at
    once."""
    made = quotas({(OF_EACH_CLIENT, PRODUCE): 1000.0}, accounts_max=3_000)
    for number in range(2_500):
        made.share_of("User:ann", f"c{number}", 0.0)
    made.apply({(OF_EACH_CLIENT, PRODUCE): 500.0})
    assert {account.rate for _, account in made.accounts()} == {1000.0}
    asked = made.share_of("User:ann", "c2499", 0.0).produce
    assert asked is not None
    assert asked.rate == 500.0
    work = made.judge_accounts(lambda: 0.0)
    done = 0
    while done < SLICE_UNITS:
        done += next(work)
    assert sum(account.rate == 1000.0 for _, account in made.accounts()) >= 1_499
    made.apply({(OF_ANN, PRODUCE): 5.0})
    assert run_through(work) is None, "it goes on by the newest quotas"
    run_through(made.judge_accounts(lambda: 0.0))
    assert made.statistics()["accounts"] == 0
    assert asked.has_ended


def test_clients_beyond_the_accounts_keep_their_debt_when_another_quota_changes() -> None:
    """Clients beyond the limit of accounts share one account. It keeps its debt as long as some quota has the
    account's rate."""
    made = quotas({(OF_EACH_CLIENT, PRODUCE): 1_000_001.0}, accounts_max=1)
    made.share_of("User:eve", "first", 0.0)
    late = made.share_of("User:eve", "late", 0.0).produce
    assert late is not None
    assert late.is_overflow
    late.charge(1e9, 0.0)
    both = {(OF_EACH_CLIENT, PRODUCE): 1_000_001.0, (OF_ANN, PRODUCE): 1_000_002.0}
    made.apply(both)
    again = made.share_of("User:eve", "latest", 0.0).produce
    assert again is late
    assert made.share_of("User:ann", None, 0.0).produce is not late
    made.apply({(OF_ANN, PRODUCE): 1_000_002.0})
    run_through(made.judge_accounts(lambda: 0.0))
    assert late.has_ended


def test_a_more_specific_quota_opens_an_account_of_its_own() -> None:
    """KIP-55: if a more specific quota is set, the client gets a new account under it."""
    made = quotas({(OF_ANN, PRODUCE): 1000.0})
    before = made.share_of("User:ann", "app", 0.0)
    made.apply({(OF_ANN, PRODUCE): 1000.0, ((("client-id", "app"), *OF_ANN), PRODUCE): 10.0})
    after = made.share_of("User:ann", "app", 0.0)
    assert after.produce is not before.produce
    assert after.produce is not None
    assert after.produce.holding.value == 10.0


def test_endless_client_ids_share_what_is_left() -> None:
    """A client with a new client id in each request costs bounded memory, and all its ids share one quota."""
    made = quotas({(OF_EACH_CLIENT, PRODUCE): 1000.0}, accounts_max=10)
    shares = [made.share_of("User:eve", f"c{number}", 0.0) for number in range(1000)]
    assert len({id(each.produce) for each in shares}) == 11
    assert made.statistics()["accounts"] == 11
    assert shares[500].produce is shares[999].produce


def test_a_client_that_names_itself_anew_takes_room_from_nobody() -> None:
    """A full table drops an account without debt, since a new one would be the same. An account in debt stays."""
    made = quotas({(OF_EACH_CLIENT, PRODUCE): 1000.0}, accounts_max=10)
    debtor = made.share_of("User:ann", "debtor", 0.0).produce
    assert debtor is not None
    debtor.charge(50_000, 0.0)
    for number in range(1000):
        share = made.share_of("User:eve", f"c{number}", number / 1000)
        assert share.produce is not None
        share.produce.charge(100, number / 1000)
    late = made.share_of("User:bob", "late", 2.0).produce
    assert late is not None
    assert not late.is_overflow
    assert made.share_of("User:ann", "debtor", 2.0).produce is debtor


def test_an_account_that_nobody_uses_goes() -> None:
    """As in Kafka, an account is dropped after an hour without use."""
    made = quotas({(OF_EACH_CLIENT, PRODUCE): 1000.0})
    made.share_of("User:ann", "a", 0.0)
    made.share_of("User:ann", "b", IDLE_SECONDS_MAX - 1)
    generation = made.generation
    made.share_of("User:ann", "b", IDLE_SECONDS_MAX + 61)
    assert [sharers for sharers, _ in made.accounts()] == [("", "b")]
    assert made.generation != generation


def test_quotas_of_addresses_charge_no_requests() -> None:
    """KIP-612: a quota of an address limits its connections, and its requests are not charged."""
    assert not quotas({((("ip", None),), "connection_creation_rate"): 5.0}).is_charging


def test_an_account_stays_as_long_as_its_client_has_to_wait() -> None:
    """The account of a client that must wait longer than an idle account lives is kept until its debt is paid."""
    made = quotas({(OF_ANN, PRODUCE): 1.0})
    account = made.share_of("User:ann", None, 0.0).produce
    assert account is not None
    debt = account.charge(10 + 2 * IDLE_SECONDS_MAX, 0.0)
    assert debt == 2 * IDLE_SECONDS_MAX
    made.share_of("User:bob", None, 1.5 * IDLE_SECONDS_MAX)
    assert made.share_of("User:ann", None, 1.5 * IDLE_SECONDS_MAX).produce is account
    made.share_of("User:bob", None, 4 * IDLE_SECONDS_MAX)
    assert made.share_of("User:ann", None, 4 * IDLE_SECONDS_MAX).produce is not account


def test_short_turns_are_charged_together() -> None:
    """Very short turns are added up and charged together, after at most a millisecond's share of the quota."""
    of_each = ((USER, None),)
    quotas = ClientQuotas(QuotaSettings(11, 1))
    quotas.apply({(of_each, REQUEST_PERCENTAGE): 50.0})
    account = quotas.share_of("User:ann", None, 0.0).request
    assert account is not None
    for _ in range(4):
        account.charge_turn(1e-4, 0.0)
    assert account.used == 0.0
    account.charge_turn(2e-4, 0.0)
    assert account.used == pytest.approx(6e-4)
    account.charge_turn(1.0, 0.0)
    assert account.used == pytest.approx(1.0006)
