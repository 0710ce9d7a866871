"""A request passes its door, and is then decided by an image with other topics.

The client must have the rights in that image, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from odradek.data_plane.handlers.apis import APIS
from odradek.metadata_quorum.controller.doors import CONTROLLER_DOORS
from odradek.security.acls.acl_index import AclIndex
from odradek.security.acls.authorizer import Authorizer, AuthorizerSettings, Denial, Rights
from odradek.security.acls.rules import CLUSTER_NAME, Acl, Operation
from odradek.security.doors.door import Admitted, Asked, Door
from odradek.wire.api_keys import ApiKey
from tests.conformance.acls.question import Names, Question, Right
from tests.conformance.acls.questions import QUESTIONS, api_of

ALICE, HOST = "User:alice", "10.0.0.1"
NAMES = Names(
    known="known",
    known_id=b"k" * 16,
    other="other",
    other_id=b"o" * 16,
    absent="absent",
    group="group",
    transactional_id="transactional",
    owner="User:owner",
    token="token",
    hmac=b"h" * 64,
)


@attrs.frozen
class Image:
    """The part of an image that doors read: these topics, with one partition each."""

    ids: dict[str, bytes]

    @property
    def topics(self) -> dict[str, Any]:
        return {
            name: SimpleNamespace(name=name, topic_id=topic_id, partitions={0: None})
            for name, topic_id in self.ids.items()
        }

    @property
    def topics_by_id(self) -> dict[bytes, Any]:
        return {topic.topic_id: topic for topic in self.topics.values()}


NOTHING = Image({})
ALL = Image({"known": b"k" * 16, "other": b"o" * 16, "absent": b"a" * 16})
MADE_ANEW = Image({"known": b"K" * 16, "other": b"O" * 16})


class Heard:
    """Keeps the denials of one door."""

    def __init__(self) -> None:
        self.denials: list[Denial] = []

    def denied(self, rights: Rights, api_key: int, denials: Sequence[Denial], further: int) -> None:
        self.denials += denials


def acl(right: Right) -> Acl:
    name = {"cluster": CLUSTER_NAME, "*": "*"}.get(right.on) or getattr(NAMES, right.on)
    return Acl(right.resource_type, name, 3, ALICE, "*", right.operation, 3)


def authorizer_of(rights: Sequence[Right]) -> Authorizer:
    made = Authorizer(AuthorizerSettings())
    made.apply(AclIndex.of({bytes([number]) * 16: acl(right) for number, right in enumerate(rights)}))
    made.auditor = Heard()
    return made


def door_of(question: Question) -> Door:
    api = api_of(question)
    if question.on_controller or APIS[api].is_forwarded:
        return CONTROLLER_DOORS[api]
    return APIS[api].door


def some_rights(question: Question) -> Iterator[tuple[Right, ...]]:
    """Yield the combinations of rights that matter to a question.

    If there are many rights, only the extreme ones are used.
    """
    rights = question.rights
    sizes = range(len(rights) + 1) if len(rights) <= 5 else (0, 1, len(rights) - 1, len(rights))
    for size in sizes:
        yield from combinations(rights, size)


def refusals(question: Question, authorizer: Authorizer, request: Any, image: Image) -> list[Denial]:
    """Return the rights that a client lacks for a request, if the cluster has the topics of this image."""
    rights = Rights(authorizer, ALICE, HOST)
    door_of(question)(Asked(rights, question.version, image), request)
    rights.log_denials(api_of(question))
    heard = authorizer.auditor
    assert isinstance(heard, Heard)
    return heard.denials


@pytest.mark.parametrize("images", [(NOTHING, ALL), (ALL, NOTHING), (ALL, MADE_ANEW)], ids=str)
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each.name)
def test_what_goes_in_is_allowed_in_any_image(question: Question, images: tuple[Image, Image]) -> None:
    """A topic is created, deleted or recreated after the door.

    The admitted request still needs no right that the client lacks.
    """
    seen, found = images
    for rights in some_rights(question):
        asked = Asked(Rights(authorizer_of(rights), ALICE, HOST), question.version, seen)
        request = question.build(NAMES)
        admitted = door_of(question)(asked, request)
        if admitted is None:
            inner = request
        elif isinstance(admitted, Admitted):
            inner = admitted.request
        else:
            continue
        lacking = refusals(question, authorizer_of(rights), inner, found)
        if api_of(question) is ApiKey.METADATA:
            # The broker sends a request to the controller in the client's name. The controller's door checks CREATE
            # again.
            lacking = [each for each in lacking if each.operation != Operation.CREATE]
        assert lacking == [], [f"{each.operation.name} {each.on}" for each in rights]


def test_nothing_of_a_deletion_goes_in_without_the_right() -> None:
    """A deletion names topics twice, or by unknown ids.

    The door answers repeated and unknown topics itself, and passes only allowed topics to the decision.
    """
    from odradek.wire.messages.delete_topics import (
        DeleteTopicsRequest,
        DeleteTopicsResponse,
        DeleteTopicState,
    )

    describes = [Right(Operation.DESCRIBE, "known")]
    state = DeleteTopicState
    request = DeleteTopicsRequest(
        [
            state("known"),
            state("known"),
            state(None, b"x" * 16),
            state(None, b"y" * 16),
            state(None, b"y" * 16),
        ]
    )
    for image in (NOTHING, ALL):
        asked = Asked(Rights(authorizer_of(describes), ALICE, HOST), 6, image)
        admitted = CONTROLLER_DOORS[ApiKey.DELETE_TOPICS](asked, request)
        assert isinstance(admitted, Admitted)
        assert (admitted.request.topics, admitted.request.topic_names) == ([], [])
        told = admitted.merge(DeleteTopicsResponse(0, [])).responses
        assert [(each.name, each.topic_id, each.error_code, each.error_message) for each in told] == [
            ("known", bytes(16), 42, "Duplicate topic name."),
            (None, b"x" * 16, 100, "This server does not host this topic ID."),
            (None, b"y" * 16, 42, "Duplicate topic id."),
        ]
