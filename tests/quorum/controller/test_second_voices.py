"""Second voices against silent brokers: whose voice counts, for how long, and against which incarnation."""

from __future__ import annotations

import attrs
import pytest

from odradek.metadata_quorum.controller.broker_sessions import BrokerSessions
from odradek.metadata_quorum.image.metadata_image import BrokerImage, MetadataImage
from odradek.metadata_quorum.second_voices import SecondVoices
from odradek.wire.messages.broker_heartbeat import SilentBroker

SUSPICION_MS = 3_000
SUSPECT, WITNESS, KAFKA = 1, 2, 3


def image(*, witness_fenced: bool = False, epoch: int = 7) -> MetadataImage:
    """Make an image with three brokers. `epoch` is the suspect's."""
    epochs = {SUSPECT: epoch, WITNESS: 8, KAFKA: 9}
    fenced = {WITNESS} if witness_fenced else set()
    brokers = {
        each: BrokerImage(each, number, bytes(16), (), (), None, each in fenced, False, ())
        for each, number in epochs.items()
    }
    return attrs.evolve(MetadataImage(), brokers=brokers)


def voices(said: list[SilentBroker] | None, now_ms: int = 10_000) -> SecondVoices:
    """Make the memory of a controller to which the witness has said this."""
    memory = SecondVoices(SUSPICION_MS)
    memory.note(SUSPECT, 7, [], now_ms - SUSPICION_MS)
    memory.note(WITNESS, 8, said, now_ms)
    return memory


AGAINST = [SilentBroker(SUSPECT, 7, SUSPICION_MS)]


def test_a_voice_counts_for_half_the_suspicion() -> None:
    """The witness has called the suspect silent. Its voice is as old as its heartbeat."""
    memory, now = voices(AGAINST), image()
    suspect = now.brokers[SUSPECT]
    assert memory.against(suspect, now, 11_500) == WITNESS
    assert memory.against(suspect, now, 11_501) is None
    (dead,) = memory.confirmed([suspect, now.brokers[KAFKA]], now, 10_000)
    assert (dead.broker_id, dead.broker_epoch, dead.since_ms) == (SUSPECT, 7, 7_000)


@pytest.mark.parametrize(
    ("said", "now"),
    [
        ([], image()),
        (None, image()),
        ([SilentBroker(SUSPECT, 7, SUSPICION_MS - 1)], image()),
        ([SilentBroker(SUSPECT, 6, SUSPICION_MS)], image()),
        (AGAINST, image(witness_fenced=True)),
        (AGAINST, image(epoch=8)),
    ],
    ids=["says nothing", "of Kafka", "too short", "earlier life", "fenced witness", "registered again"],
)
def test_voices_that_do_not_count(said: list[SilentBroker] | None, now: MetadataImage) -> None:
    """Only an unfenced broker's voice counts, against the present incarnation, after a long silence."""
    assert voices(said).against(now.brokers[SUSPECT], now, 10_000) is None


def test_nobody_speaks_against_itself() -> None:
    """A broker that names itself is not a second voice."""
    memory = SecondVoices(SUSPICION_MS)
    assert not memory.note(SUSPECT, 7, AGAINST, 10_000)
    assert memory.against(image().brokers[SUSPECT], image(), 10_000) is None


def test_brokers_of_kafka_are_judged_by_their_sessions() -> None:
    """Heartbeats of Kafka's brokers lack the field. A new controller that has met one takes no unknown broker for one
    of Odradek."""
    now = image()
    memory = SecondVoices(SUSPICION_MS)
    memory.note(WITNESS, 8, [SilentBroker(KAFKA, 9, 4_000), SilentBroker(SUSPECT, 7, 4_000)], 10_000)
    assert memory.against(now.brokers[SUSPECT], now, 10_000) == WITNESS
    memory.note(KAFKA, 9, None, 10_000)
    assert memory.against(now.brokers[KAFKA], now, 10_000) is None
    assert memory.against(now.brokers[SUSPECT], now, 10_000) is None
    memory.note(SUSPECT, 7, [], 6_000)
    assert memory.against(now.brokers[SUSPECT], now, 10_000) == WITNESS


def test_the_former_leader_was_quiet_before() -> None:
    """A node that was broker and active controller has died. The next controller knows since when it is quiet. The
    first heartbeat ends the silence."""
    sessions = BrokerSessions(9_000)
    sessions.start(image(), 12_000, (SUSPECT, 10_000))
    assert sessions.silent(image(), 10_000) == [SUSPECT]
    assert sessions.is_valid(SUSPECT, 20_999)
    sessions.touch(SUSPECT, 12_500, 1)
    assert sessions.silent(image(), 12_499) == [WITNESS, KAFKA]
