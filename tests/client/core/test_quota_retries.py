"""Changes that a quota refuses (KIP-599). They are repeated after the throttle time, until the timeout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from odradek.cli.connecting import call_failure
from odradek.client.admin import (
    DelegationToken,
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
    renew_delegation_token,
)
from odradek.client.core.client_core import ClientCore
from odradek.client.core.operation import Operation
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.create_partitions import CreatePartitionsResponse, CreatePartitionsTopicResult
from odradek.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from odradek.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from odradek.wire.messages.metadata import MetadataResponse
from odradek.wire.messages.renew_delegation_token import RenewDelegationTokenResponse
from tests.client.core.test_scatter import TwoBrokers

THROTTLE_MS = 2_000
EXCEEDED = int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)


def created(throttle_ms: int, **codes: int) -> CreateTopicsResponse:
    topics = [CreatableTopicResult(name=name, error_code=code) for name, code in codes.items()]
    return CreateTopicsResponse(throttle_ms, topics)


def deleted(throttle_ms: int, **codes: int) -> DeleteTopicsResponse:
    results = [DeletableTopicResult(name=name, error_code=code) for name, code in codes.items()]
    return DeleteTopicsResponse(throttle_ms, results)


def grown(throttle_ms: int, **codes: int) -> CreatePartitionsResponse:
    results = [CreatePartitionsTopicResult(name=name, error_code=code) for name, code in codes.items()]
    return CreatePartitionsResponse(throttle_ms, results)


def create(core: ClientCore, names: Sequence[str], timeout: float) -> Operation[list[Any]]:
    outcomes = yield from create_topics(core, [NewTopic(name) for name in names], timeout=timeout)
    return [(each.name, each.error) for each in outcomes]


def delete(core: ClientCore, names: Sequence[str], timeout: float) -> Operation[list[Any]]:
    return delete_topics(core, names, timeout=timeout)


def grow(core: ClientCore, names: Sequence[str], timeout: float) -> Operation[list[Any]]:
    return create_partitions(core, dict.fromkeys(names, 2), timeout=timeout)


CALLS = [
    pytest.param(create, created, ApiKey.CREATE_TOPICS, id="create_topics"),
    pytest.param(delete, deleted, ApiKey.DELETE_TOPICS, id="delete_topics"),
    pytest.param(grow, grown, ApiKey.CREATE_PARTITIONS, id="create_partitions"),
]


def one_broker(key: ApiKey, *answers: Any) -> TwoBrokers:
    """Make a cluster whose only broker gives these answers, one after the other."""
    two = TwoBrokers()
    del two.brokers[2]
    two.brokers[1].answers[ApiKey.METADATA] = lambda _, request, __: MetadataResponse(
        brokers=two.metadata(request).brokers, cluster_id="fake-cluster", controller_id=1
    )
    two.answer(1, key, *answers)
    return two


@pytest.mark.parametrize(("call", "answer", "key"), CALLS)
def test_what_a_quota_refuses_is_asked_for_again(
    call: Callable[..., Operation[list[Any]]], answer: Callable[..., Any], key: ApiKey
) -> None:
    """A quota refuses one of two changes (KIP-599). Only this change is repeated, after the throttle time."""
    two = one_broker(key, answer(THROTTLE_MS, a=0, b=EXCEEDED), answer(0, b=0))
    assert two.run(call(two.wire.core, ["a", "b"], 30.0)) == [("a", None), ("b", None)]
    first, again = two.asked(1, key)
    assert two.wire.now >= THROTTLE_MS / 1000
    text = repr(again)
    assert "'b'" in text
    assert "'a'" not in text
    assert "'a'" in repr(first)


@pytest.mark.parametrize(("call", "answer", "key"), CALLS)
def test_a_wait_beyond_the_timeout_is_the_refusal(
    call: Callable[..., Operation[list[Any]]], answer: Callable[..., Any], key: ApiKey
) -> None:
    """The throttle time exceeds the timeout.

    The refused change has the outcome THROTTLING_QUOTA_EXCEEDED at once. The other change is made (KIP-599).
    """
    two = one_broker(key, answer(60_000, a=0, b=EXCEEDED))
    (a, done), (b, refusal) = two.run(call(two.wire.core, ["a", "b"], 30.0))
    assert (a, done, b) == ("a", None, "b")
    assert isinstance(refusal, KafkaError)
    assert refusal.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert len(two.asked(1, key)) == 1
    line = str(call_failure(refusal, changes=True))
    assert "\n" not in line
    assert "odradek quota explain" in line


def test_a_client_that_is_refused_for_long_asks_once_per_throttle_time() -> None:
    """A change is refused again and again. The client asks once per throttle time, until the timeout."""
    two = one_broker(ApiKey.CREATE_TOPICS, *[created(THROTTLE_MS, a=EXCEEDED)] * 20)
    ((_, refusal),) = two.run(create(two.wire.core, ["a"], 9.0))
    assert refusal.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert len(two.asked(1, ApiKey.CREATE_TOPICS)) == 5


def renewed(throttle_ms: int, code: int) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(code, 0 if code else 77, throttle_ms)


def test_a_refused_change_of_a_token_is_asked_for_again() -> None:
    """A quota refuses a change of a delegation token.

    The client repeats it after the throttle time, within its timeout.
    """
    key = ApiKey.RENEW_DELEGATION_TOKEN
    two = one_broker(key, renewed(THROTTLE_MS, EXCEEDED), renewed(0, 0))
    assert two.run(renew_delegation_token(two.wire.core, b"secret", timeout=30.0)) == 77
    assert two.wire.now >= THROTTLE_MS / 1000
    assert len(two.asked(1, key)) == 2
    two = one_broker(key, renewed(60_000, EXCEEDED))
    with pytest.raises(KafkaError) as caught:
        two.run(renew_delegation_token(two.wire.core, b"secret", timeout=30.0))
    assert caught.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert len(two.asked(1, key)) == 1


def test_the_list_of_tokens_shows_few_renewers(capsys: pytest.CaptureFixture[str]) -> None:
    """A line of the list of tokens shows three renewers, and the number of the others."""
    from odradek.cli.commands.token import _show

    token = DelegationToken("id", "User:a", "User:a", ("User:r",) * 20, 0, 1, 1, b"")
    _show([token, attrs.evolve(token, renewers=("User:s",) * 3)])
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert "User:r,User:r,User:r and 17 more" in first
    assert "User:s,User:s,User:s " in second
    assert "more" not in second
