"""Requests for markers on a connection that their sender has replaced are recognised."""

from __future__ import annotations

from odradek.data_plane.transactions.marker_senders import SENDERS_MAX, MarkerSenders
from odradek.serving.contract import Context


def opened_at(seconds: float, client_id: str = "broker-1-transactions", address: str = "10.0.0.1") -> Context:
    """Make the context of a connection that was opened at this time."""
    context = Context("BROKERS", address)
    context.client_id, context.opened_seconds = client_id, seconds
    return context


def test_only_the_newest_connection_of_a_sender_counts() -> None:
    """A connection is replaced once its sender has used a newer one. Other senders are not concerned."""
    senders = MarkerSenders()
    old, new = opened_at(1.0), opened_at(2.0)
    senders.note(old)
    assert not senders.has_replaced(old)
    assert not senders.has_replaced(new)
    senders.note(new)
    senders.note(old)
    assert senders.has_replaced(old)
    assert not senders.has_replaced(new)
    assert not senders.has_replaced(opened_at(1.0, client_id="broker-2-transactions"))
    assert not senders.has_replaced(opened_at(1.0, address="10.0.0.2"))


def test_the_sender_that_was_silent_for_longest_is_forgotten() -> None:
    """No client can make the broker remember more than `SENDERS_MAX` senders."""
    senders = MarkerSenders()
    for number in range(SENDERS_MAX):
        senders.note(opened_at(2.0, client_id=f"client-{number}"))
    senders.note(opened_at(2.0, client_id="client-0"))
    senders.note(opened_at(2.0, client_id="one more"))
    assert senders.has_replaced(opened_at(1.0, client_id="client-0"))
    assert not senders.has_replaced(opened_at(1.0, client_id="client-1"))
    assert senders.has_replaced(opened_at(1.0, client_id="client-2"))
