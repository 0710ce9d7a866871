"""The token bucket of a quota."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.metadata_quorum.quotas.token_bucket import WAIT_MS_MAX, TokenBucket, wait_ms

amounts = st.floats(0, 1e6, allow_nan=False)


@given(st.floats(1, 1e6), st.floats(0, 60), st.lists(amounts, max_size=50))
def test_a_client_that_waits_as_told_keeps_to_its_quota(
    rate: float, burst_seconds: float, asked: list[float]
) -> None:
    """KIP-219: a client that waits as long as it is asked to uses at most the burst, plus the rate times the elapsed
    time."""
    bucket = TokenBucket(rate, rate * burst_seconds, 0.0)
    now = used = 0.0
    for amount in asked:
        assert used <= rate * (burst_seconds + now) * (1 + 1e-9) + 1e-6
        used += amount
        now += bucket.charge(amount, now)


@given(st.floats(1, 1e6), st.lists(st.tuples(amounts, st.floats(0, 100)), max_size=50))
def test_a_bucket_never_holds_more_than_its_burst(rate: float, asked: list[tuple[float, float]]) -> None:
    """KIP-599: unused tokens beyond the burst are lost."""
    bucket = TokenBucket(rate, rate * 10, 0.0)
    now = 0.0
    for amount, rest in asked:
        bucket.charge(amount, now)
        now += rest + bucket.wait_seconds(now)
    assert bucket.charge(rate * 10, now + 1e6) == 0.0
    assert bucket.charge(rate, now + 1e6) > 0.0


def test_a_debt_is_repaid_at_the_rate() -> None:
    """KIP-13: the wait is the excess divided by the quota."""
    bucket = TokenBucket(100.0, 1000.0, 5.0)
    assert bucket.charge(1000.0, 5.0) == 0.0
    assert bucket.charge(250.0, 5.0) == 2.5
    assert bucket.wait_seconds(6.5) == 1.0
    assert bucket.wait_seconds(8.0) == 0.0


def test_a_lower_quota_keeps_a_debt_of_one_burst_at_most() -> None:
    """If the quota is lowered, a debt is cut to one burst, so that nobody waits for hours because of earlier use."""
    bucket = TokenBucket(1e6, 1e7, 0.0)
    bucket.charge(2e7, 0.0)
    bucket.set_rate(10.0, 100.0, 0.0)
    assert bucket.wait_seconds(0.0) == 10.0


def test_a_wait_is_told_in_whole_milliseconds_that_fit_an_answer() -> None:
    """A wait is a whole number of milliseconds that fits 32 bits, even for a quota near 0."""
    assert [wait_ms(seconds) for seconds in (0.0004, 2.5, 1e7, 1e300, float("inf"))] == [
        1,
        2501,
        WAIT_MS_MAX,
        WAIT_MS_MAX,
        WAIT_MS_MAX,
    ]


def test_an_infinite_quota_leaves_no_debt_behind() -> None:
    """A quota may be infinite, as in Kafka. Under it no debt arises, and the next quota begins with a whole burst."""
    endless = float("inf")
    bucket = TokenBucket(endless, endless, 0.0)
    assert bucket.charge(1e9, 0.0) == 0.0
    bucket.set_rate(10.0, 100.0, 0.0)
    assert bucket.has(100.0, 0.0)
    bucket.charge(150.0, 0.0)
    bucket.set_rate(endless, endless, 0.0)
    assert bucket.wait_seconds(1.0) == 0.0


def test_the_least_quota_is_one() -> None:
    """With the smallest quota above 0, whose share rounds to 0, a client waits as long as an answer can say."""
    least = 5e-324
    bucket = TokenBucket(least / 100, least / 10, 0.0)
    assert wait_ms(bucket.charge(1.0, 0.0)) == WAIT_MS_MAX
    assert wait_ms(bucket.wait_seconds(5.0)) == WAIT_MS_MAX
    bucket.set_rate(0.0, 0.0, 6.0)
    assert bucket.charge(1.0, 6.0) > 0.0


def test_the_quota_that_a_bucket_has_changes_nothing() -> None:
    """Setting the quota that a bucket already has leaves its debt as it is, even for the smallest quotas."""
    for rate in (5e-324, 1.0):
        bucket = TokenBucket(rate, rate * 10, 0.0)
        bucket.charge(1_000.0, 0.0)
        debt = bucket.wait_seconds(1.0)
        bucket.set_rate(rate, rate * 10, 1.0)
        assert bucket.wait_seconds(1.0) == debt
