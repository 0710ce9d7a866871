"""Doors check the rights of every served API.

Parked requests are checked again, and answers equal those recorded from Kafka.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import attrs
import pytest

from odradek.data_plane.handlers.apis import APIS
from odradek.metadata_quorum.controller.doors import CONTROLLER_DOORS, OF_NODES
from odradek.security.acls.acl_index import AclIndex
from odradek.security.acls.authorizer import Authorizer, AuthorizerSettings
from odradek.security.acls.rules import CLUSTER_NAME, SUPPORTED, Acl, Operation, ResourceType
from odradek.security.doors.door import DECISIONS_AT_ONCE, Asked, GuardedHandler
from odradek.serving.contract import Context, Delayed, Suspend
from odradek.wire.api import api_versions, request_class, response_class
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from odradek.wire.messages.envelope import EnvelopeRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.schema.anatomy_rows import ODD, ROWS
from testkit.odradek_server import start_odradek
from testkit.processes import free_ports
from testkit.raw_requests import RawClient
from tests.conformance.acls.asking import SETTINGS, all_cases, answers_of
from tests.conformance.acls.questions import QUESTIONS, api_of
from tests.conformance.acls.recording import SEAL, compare, load, seal
from tests.conformance.servers import SETTINGS as BASE
from tests.conformance.servers import Place
from tests.security.secured_node import make_certificates
from tests.security.table import PATH, render, rights

BETWEEN_NODES_ALONE = {
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.ENVELOPE,
}
"""Controllers' APIs without a recorded case. Each has the same door as Vote, which has recorded cases."""


WITH_A_PLUGIN_ALONE = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
"""Kafka serves these APIs only with a plugin, and to all clients. tests/telemetry tests the right for our own field."""


class Topics:
    """A cluster without topics."""

    topics: ClassVar[dict[str, Any]] = {}
    topics_by_id: ClassVar[dict[bytes, Any]] = {}


def test_every_recorded_case_is_asked() -> None:
    """The recording has exactly the present cases, and at least 400 of them."""
    assert list(load()) == [case.name for case in all_cases()]
    assert len(load()) >= 400
    assert SEAL.read_text().strip() == seal(), (
        "the cases have changed: `python -m tests.conformance.acls record` asks Apache Kafka again"
    )


def test_every_api_with_a_door_has_questions() -> None:
    """For every API with a door, there are recorded answers of Kafka with and without rights."""
    asked = {api_of(question) for question in QUESTIONS}
    assert {*APIS, *CONTROLLER_DOORS} - asked == BETWEEN_NODES_ALONE | WITH_A_PLUGIN_ALONE


def test_what_a_refusal_looks_like_is_known_of_every_api_with_a_door() -> None:
    """For every API with a door, the form of a refusal is known.

    It is a row for each refused thing, one error for all, or a form that the API's own entry explains.
    """
    served = {*APIS, *CONTROLLER_DOORS}
    assert [
        api for api in served - ROWS.keys() - ODD.keys() if not hasattr(response_class(api)(), "error_code")
    ] == []


def test_what_brokers_pass_on_is_judged_by_controllers() -> None:
    """A broker forwards some requests unchecked. The controller's door for each of them is not open to all."""
    forwarded = [key for key, api in APIS.items() if api.is_forwarded]
    assert len(forwarded) > 10
    for key in forwarded:
        assert CONTROLLER_DOORS[key] is not CONTROLLER_DOORS[ApiKey.API_VERSIONS], key


def test_what_only_nodes_send_needs_cluster_action() -> None:
    """An API that only nodes use needs CLUSTER_ACTION. No other right to the cluster suffices."""
    held = Authorizer(AuthorizerSettings())
    acl_id = b"1" * 16
    for operation in SUPPORTED[ResourceType.CLUSTER]:
        held.apply(AclIndex.of({acl_id: Acl(4, CLUSTER_NAME, 3, "User:alice", "*", operation, 3)}))
        for api in OF_NODES:
            asked = Asked(_rights(held), api_versions(api, unstable=True)[1], Topics())
            refused = CONTROLLER_DOORS[api](asked, request_class(api)())
            if operation is Operation.CLUSTER_ACTION:
                assert refused is None, api
            else:
                assert refused.error_code == 31, api


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("asked_for", [False, True])
def test_two_phases_need_a_right_of_their_own(asked_for: bool, written: bool, two_phase: bool) -> None:
    """InitProducerId with `enable2Pc` needs TWO_PHASE_COMMIT on the transactional id, and WRITE (KIP-939)."""
    held = Authorizer(AuthorizerSettings())
    granted = [Operation.WRITE] * written + [Operation.TWO_PHASE_COMMIT] * two_phase
    acls = {
        bytes([number]) * 16: Acl(ResourceType.TRANSACTIONAL_ID, "id", 3, "User:alice", "*", operation, 3)
        for number, operation in enumerate(granted)
    }
    held.apply(AclIndex.of(acls))
    request = InitProducerIdRequest("id", 60_000, enable2_pc=asked_for)
    refused = APIS[ApiKey.INIT_PRODUCER_ID].door(Asked(_rights(held), 6, Topics()), request)
    if written and (two_phase or not asked_for):
        assert refused is None
    else:
        assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _rights(authorizer: Authorizer) -> Any:
    from odradek.security.acls.authorizer import Rights

    return Rights(authorizer, "User:alice", "10.0.0.1")


def test_a_parked_answer_is_judged_again() -> None:
    """A client loses a right while its request is parked. The door's method `again` then refuses the answer."""
    held = Authorizer(AuthorizerSettings())
    rule = Acl(ResourceType.TOPIC, "t", 3, "User:ANONYMOUS", "*", Operation.WRITE, 3)
    held.apply(AclIndex.of({b"1" * 16: rule}))
    waiting: list[Delayed] = [Delayed(), Delayed()]
    parked = iter(waiting)

    def again(asked: Asked, response: Any) -> Any:
        return response if asked.may(Operation.WRITE, "t") else "refused"

    handler = GuardedHandler(
        lambda context, request: next(parked), lambda asked, request: None, held, Topics, again
    )
    context = Context("PLAINTEXT", "10.0.0.1")
    handler.handle(context, None)
    handler.handle(context, None)
    waiting[0].complete("done")
    held.apply(AclIndex())
    waiting[1].complete("done")
    assert [each.response for each in waiting] == ["done", "refused"]


class Beside:
    """A stub of `LongWork`, which begins work without any turns."""

    def begin(self) -> Beside:
        return self


@pytest.mark.parametrize("count", [DECISIONS_AT_ONCE, DECISIONS_AT_ONCE + 1])
def test_many_decisions_are_made_beside_the_loop(count: int) -> None:
    """A door that needs many decisions is run as long work, so that it does not hold up the loop."""
    judged: list[Any] = []
    long_work: Any = Beside()
    handler = GuardedHandler(
        lambda context, request: None,
        lambda asked, request: judged.append(request),
        Authorizer(AuthorizerSettings()),
        Topics,
        long_work=long_work,
    ).counting(lambda asked, request: request)
    result = handler.handle(Context("PLAINTEXT", "10.0.0.1"), count)
    assert isinstance(result, Suspend) is (count > DECISIONS_AT_ONCE)
    assert judged == ([] if isinstance(result, Suspend) else [count])


def test_all_topics_with_operations_count_as_many_decisions() -> None:
    """A short request for all topics with their operations counts as many decisions.

    A request for few topics does not.
    """
    held = Authorizer(AuthorizerSettings())
    topics: Any = SimpleNamespace(topics=dict.fromkeys(f"t{number}" for number in range(500)))
    asked = Asked(_rights(held), 12, topics)

    def count(request: Any) -> int:
        counts = APIS[ApiKey(request.API_KEY)].decisions
        assert counts is not None
        broker: Any = None
        return counts(broker, asked, request)

    every = MetadataRequest(None, False, False, True)
    assert count(every) > DECISIONS_AT_ONCE
    assert count(attrs.evolve(every, include_topic_authorized_operations=False)) < 600
    few = DescribeTopicPartitionsRequest([TopicRequest("a"), TopicRequest("b")], 10, None)
    assert count(few) < 20
    assert count(attrs.evolve(few, topics=[])) > DECISIONS_AT_ONCE


@pytest.fixture(scope="module")
def judging_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node with an authorizer and without ACLs."""
    place = Place.of({**BASE, **SETTINGS})
    server = start_odradek(tmp_path_factory.mktemp("acls"), port=place.port, settings=place.settings)
    try:
        yield server.bootstrap
        assert server.is_running(), server.log_tail()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def answers(judging_node: str) -> dict[str, Any]:
    """The node's answers to all recorded cases. The first case adds ACLs to the node."""
    return answers_of(judging_node, "abcdef")


def test_every_served_api_has_a_door(judging_node: str) -> None:
    """A node with an authorizer advertises exactly the APIs that have a door."""
    with RawClient(judging_node) as client:
        told = client.request(ApiVersionsRequest("s", "1"), 3).api_keys
    assert {ApiKey(each.api_key) for each in told} == {*APIS}


def test_we_judge_like_kafka(answers: dict[str, Any]) -> None:
    """We answer as Kafka does: to a client without rights, with the smallest sufficient right, and with a wrong
    right."""
    differences = compare(answers)
    assert not differences, "\n".join(differences[:40])


@pytest.mark.attack
def test_we_judge_alike_on_every_listener_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases get the same answers on TLS listeners, TLS listeners with logins, and controllers' TLS listeners."""
    make_certificates(tmp_path)
    (begin,) = free_ports(1)
    place = Place.of({**BASE, **SETTINGS})
    listeners, advertised = (
        place.settings[key].replace("PLAINTEXT://", "CLIENTS://") + f",PLAINTEXT://127.0.0.1:{begin}"
        for key in ("listeners", "advertised.listeners")
    )
    secured = {
        "listeners": listeners,
        "advertised.listeners": advertised,
        "listener.security.protocol.map": "CLIENTS:SSL,SASL:SASL_SSL,CONTROLLER:SSL,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "node.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "authority.pem"),
    }
    context, plainly = ssl.create_default_context(cafile=tmp_path / "authority.pem"), socket.create_connection

    def encrypted(address: tuple[str, int], *rest: Any) -> socket.socket:
        return context.wrap_socket(plainly(address, *rest), server_hostname="127.0.0.1")

    server = start_odradek(tmp_path / "node", port=begin, settings={**place.settings, **secured})
    try:
        monkeypatch.setattr(socket, "create_connection", encrypted)
        differences = compare(answers_of(f"127.0.0.1:{place.port}", "abcdef"))
    finally:
        server.kill()
    assert not differences, "\n".join(differences[:40])


@pytest.mark.usefixtures("answers")
def test_a_forged_envelope_is_refused(judging_node: str) -> None:
    """A client without CLUSTER_ACTION sends an envelope in another principal's name.

    It is refused before its contents are read.
    """
    from odradek.wire.principal import encode_principal
    from testkit.raw_requests import frame
    from tests.conformance.acls.asking import _Client, _Stage

    stage = _Stage(judging_node, "abcdef")
    creation = AclCreation(2, "forged", 3, "User:ANONYMOUS", "*", 2, 3)
    inner = bytes(frame(CreateAclsRequest([creation]), 3)[4:])
    envelope = EnvelopeRequest(inner, encode_principal("User:nobody"), bytes([127, 0, 0, 1]))
    with _Client(stage.controller, "127.9.9.9") as forger:
        answer = forger.request(envelope, 0)
    assert (answer.error_code, answer.response_data) == (31, None)
    with _Client(judging_node, "127.9.9.9") as forger:
        assert forger.request(MetadataRequest(None, False), 12).topics == []
    # 127.0.0.1 has CLUSTER_ACTION, so its envelopes are opened. The principal and address inside have no rights.
    poor = EnvelopeRequest(inner, encode_principal("User:mallory"), bytes([127, 9, 9, 9]))
    with _Client(stage.controller, "127.0.0.1") as broker:
        answer = broker.request(poor, 0)
    assert answer.error_code == 0
    assert b"Cluster authorization failed" in answer.response_data


def test_the_table_of_rights_is_made_from_the_doors() -> None:
    """docs/acls.md lists the right for each served API. `python -m tests.security.table` writes the table."""
    assert all(text for text, _ in rights().values())
    assert PATH.read_text() == render()
