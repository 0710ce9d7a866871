"""Rights and quotas while a decision is in flight: it is decided, but no committed image shows it yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from odradek.env.ports import Env
from odradek.metadata_quorum.controller.doors import ControllerDoors
from odradek.metadata_quorum.controller.parts import PART_WEIGHT_MAX
from odradek.metadata_quorum.controller_channel import (
    answer_in_turns,
    answer_request,
    let_in,
    log_denials,
    takes_long,
)
from odradek.metadata_quorum.envelope import Sender
from odradek.metadata_quorum.service import MetadataService
from odradek.security.acls.acl_index import AclIndex
from odradek.security.acls.authorizer import Authorizer, AuthorizerSettings
from odradek.security.acls.rules import Acl, Operation, ResourceType
from odradek.security.doors.door import Admitted
from odradek.security.tokens import TokenSecrets
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from odradek.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from odradek.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from odradek.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.quorum.voters.node_parts import create, join, make_world, run, running_controller

ADMIN = Sender("User:admin", "admin", "10.0.0.1")
READER = Sender("User:reader", "app", "10.0.0.2")
NOTHING: dict[bytes, Acl] = {}


def reads(name: str) -> dict[bytes, Acl]:
    """Return ACLs of a user who may READ topics with this prefix. READ implies DESCRIBE."""
    return {b"1" * 16: Acl(ResourceType.TOPIC, name, 4, READER.principal, "*", Operation.READ, 3)}


async def as_client(
    service: MetadataService, env: Env, sender: Sender, request: Any, version: int | None = None
) -> Any:
    """Send a client's request as a broker forwards it, and return the answer."""
    return await begun(service, env, sender, request, version)()


def begun(
    service: MetadataService, env: Env, sender: Sender, request: Any, version: int | None = None
) -> Callable[[], Any]:
    """Start a client's request, which is decided now. The returned function waits for the answer."""
    version = type(request).VALID_VERSIONS[1] if version is None else version
    admitted = let_in(service, sender, request, version)
    log_denials(service)
    answered, answers = env.event(), []

    def respond(response: Any) -> None:
        answers.append(response)
        answered.set()

    if isinstance(admitted, Admitted):
        answer_request(service, admitted.request, version, lambda told: respond(admitted.merge(told)), sender)
    else:
        respond(admitted)

    async def answer() -> Any:
        await answered.wait()
        return answers[0]

    return answer


async def in_flight(service: MetadataService, env: Env, name: str) -> Callable[[], Any]:
    """Start the creation of a topic, which is decided but not committed."""
    creating = begun(service, env, ADMIN, create(name))
    assert name not in service.committed_image.topics
    return creating


def quota_of_reader(rate: float) -> AlterClientQuotasRequest:
    """Make a request that sets the reader's quota of changes."""
    change = OpData("controller_mutation_rate", rate, False)
    entry = AlterClientQuotasRequestEntryData([EntityData("user", "reader")], [change])
    return AlterClientQuotasRequest([entry], False)


def guarded(service: MetadataService, acls: dict[bytes, Acl]) -> None:
    authorizer = Authorizer(AuthorizerSettings(frozenset({ADMIN.principal})))
    authorizer.apply(AclIndex.of(acls))
    service.doors = ControllerDoors(authorizer, lambda: service.committed_image)


@pytest.mark.parametrize("version", [5, 6])
def test_a_reader_does_not_delete_a_topic_that_is_being_made(version: int) -> None:
    """A client without DELETE deletes a topic whose creation is in flight.

    The deletion gets UNKNOWN_TOPIC_OR_PARTITION, and the topic is created.
    """

    async def main(env: Env) -> None:
        async with running_controller(env) as service:
            await join(service, env)
            guarded(service, reads("r-"))
            for number in range(3):
                name = f"r-{number}"
                creating = await in_flight(service, env, name)
                asked = DeleteTopicsRequest(
                    [DeleteTopicState(name)] if version > 5 else [], [] if version > 5 else [name], 1000
                )
                deleting = begun(service, env, READER, asked, version)
                assert not (await creating()).topics[0].error_code
                told = (await deleting()).responses[0]
                assert told.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                assert name in service.committed_image.topics
                told = (await as_client(service, env, READER, asked, version)).responses[0]
                assert told.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            allowed = DeleteTopicsRequest([DeleteTopicState("r-0"), DeleteTopicState("none")], [], 1000)
            told = (await as_client(service, env, ADMIN, allowed)).responses
            assert {each.name: each.error_code for each in told} == {"r-0": 0, "none": 3}

    _play(main)


def test_a_deletion_with_the_right_finds_what_is_being_made() -> None:
    """A client with DELETE deletes a topic whose creation is in flight.

    It succeeds, since rights depend only on the name.
    """

    async def main(env: Env) -> None:
        async with running_controller(env) as service:
            await join(service, env)
            guarded(service, NOTHING)
            creating = await in_flight(service, env, "mine")
            deleting = begun(service, env, ADMIN, DeleteTopicsRequest([DeleteTopicState("mine")], [], 1000))
            assert not (await creating()).topics[0].error_code
            assert not (await deleting()).responses[0].error_code
            assert "mine" not in service.committed_image.topics

    _play(main)


def test_a_quota_counts_partitions_of_a_topic_that_is_being_made() -> None:
    """The quota counts partitions that are added to, or deleted with, a topic whose creation is in flight (KIP-599)."""

    async def main(env: Env) -> None:
        async with running_controller(env, quota_windows=1, quota_window_seconds=1) as service:
            await join(service, env)
            entity = [EntityData("user", "reader")]
            quota = AlterClientQuotasRequestEntryData(
                entity, [OpData("controller_mutation_rate", 10.0, False)]
            )
            await as_client(service, env, ADMIN, AlterClientQuotasRequest([quota], False))
            creating = begun(service, env, READER, create("t", 1))
            grown = CreatePartitionsRequest([CreatePartitionsTopic("t", 101, None)], 1000, False)
            growing = begun(service, env, READER, grown)
            deleting = begun(service, env, READER, DeleteTopicsRequest([DeleteTopicState("t")], [], 1000))
            assert not (await creating()).topics[0].error_code
            assert not (await growing()).results[0].error_code
            told = await deleting()
            assert told.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
            assert told.throttle_time_ms > 8_000, (
                f"{told.throttle_time_ms} ms are too short for an excess of 91 mutations at 10 per second"
            )

    _play(main)


def test_a_quota_counts_what_each_part_of_a_long_request_finds() -> None:
    """A topic is created while a long request waits for its turn.

    The request grows this topic, and its client's quota is charged.
    """

    async def main(env: Env) -> None:
        async with running_controller(env, quota_windows=1, quota_window_seconds=1) as service:
            await join(service, env)
            await as_client(service, env, ADMIN, quota_of_reader(10.0))
            topics = [CreatePartitionsTopic(f"none-{number}", 2, None) for number in range(PART_WEIGHT_MAX)]
            grown = CreatePartitionsRequest([*topics, CreatePartitionsTopic("t", 101, None)], 1000, False)
            version = CreatePartitionsRequest.VALID_VERSIONS[1]
            admitted = let_in(service, READER, grown, version)
            assert takes_long(service, admitted.request)
            creating = begun(service, env, ADMIN, create("t", 1))
            share = env.long_work.begin()
            response = await answer_in_turns(service, share, admitted.request, version, READER)
            told = {each.name: each.error_code for each in admitted.merge(response).results}
            assert (told["t"], told["none-0"], len(told)) == (0, 3, PART_WEIGHT_MAX + 1)
            assert not (await creating()).topics[0].error_code
            deleted = DeleteTopicsRequest([DeleteTopicState("t")], [], 1000)
            told = await as_client(service, env, READER, deleted)
            assert told.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED

    _play(main)


def test_the_parts_of_a_long_request_share_a_quota() -> None:
    """The parts of a long request share one quota. The answer has the longest throttle time of all parts."""

    async def main(env: Env) -> None:
        async with running_controller(env, quota_windows=1, quota_window_seconds=1) as service:
            await join(service, env)
            await as_client(service, env, ADMIN, quota_of_reader(50.0))
            made = CreateTopicsRequest(
                [CreatableTopic(f"t-{number}", 1, 1, [], []) for number in range(500)], 1000, False
            )
            version = CreateTopicsRequest.VALID_VERSIONS[1]
            assert takes_long(service, made)
            response = await answer_in_turns(service, env.long_work.begin(), made, version, READER)
            codes = Counter(each.error_code for each in response.topics)
            assert codes.total() == len({each.name for each in response.topics}) == 500
            assert 50 <= codes[ErrorCode.NONE] == len(service.committed_image.topics) < 100
            assert codes[ErrorCode.THROTTLING_QUOTA_EXCEEDED] == 500 - codes[ErrorCode.NONE]
            assert response.throttle_time_ms > 0

    _play(main)


def test_a_quota_counts_changes_of_tokens() -> None:
    """A client that exceeds its quota is refused all changes of tokens, with a throttle time.

    Other clients are not affected.
    """

    async def main(env: Env) -> None:
        secrets = TokenSecrets.of_key("a secret of all nodes")
        async with running_controller(
            env, quota_windows=2, quota_window_seconds=1, token_secrets=secrets
        ) as service:
            await as_client(service, env, ADMIN, quota_of_reader(1.0))
            made = await as_client(service, env, READER, CreateDelegationTokenRequest())
            renewal, end = (
                RenewDelegationTokenRequest(made.hmac, 1),
                ExpireDelegationTokenRequest(made.hmac, -1),
            )
            assert not (await as_client(service, env, READER, renewal)).error_code
            await as_client(service, env, READER, renewal)
            for request in (CreateDelegationTokenRequest(), renewal, end):
                refused = await as_client(service, env, READER, request)
                assert refused.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
                assert 0 < refused.throttle_time_ms <= 2_000
            assert made.token_id in service.committed_image.access.delegation_tokens
            assert not (await as_client(service, env, ADMIN, CreateDelegationTokenRequest())).error_code
            await env.clock.sleep_until(env.clock.monotonic() + refused.throttle_time_ms / 1000)
            assert not (await as_client(service, env, READER, end)).error_code

    _play(main)


def _play(main: Callable[[Env], Any]) -> None:
    """Run a simulated world to its end."""
    world, ends = make_world(), []

    async def to_the_end(env: Env) -> None:
        await main(env)
        ends.append(True)

    world.run(run, world, to_the_end)
    assert ends
