"""Somebody who has not logged in asks for metadata; a client that lacks the right makes a topic."""

from __future__ import annotations

from collections.abc import Iterator

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.metadata import MetadataRequest
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place

WHO = "client"


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Ask for metadata before any login; make a topic as a client that lacks the right."""
    with place.stranger() as stranger:
        try:
            answer = stranger.call(MetadataRequest(None, False, False, False), 12)
            yield Outcome("nobody is served before the login", False, repr(answer)[:100])
        except ConnectionError:
            yield Outcome("nobody is served before the login", True)
    request = CreateTopicsRequest([CreatableTopic("stolen", 1, 1, [], [])], 5000, False)
    with place.client() as client:
        code = client.call(request, 7).topics[0].error_code
    yield Outcome(
        "a topic is made by those who may", code == ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"code {code}"
    )
