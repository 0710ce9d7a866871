"""What brokers say about the silence of other brokers: the second voice against a suspect. PURE.

The first voice is the controller's own: it has heard nothing of the suspect for `odradek.broker.suspicion.ms`. The
second one is another node's broker, whose last heartbeat says that its own exchange with the suspect has been silent as
long (`odradek.data_plane.replication.peer_silence`). One voice alone proves little: a single link may be cut, or the
controller itself may be slow.

Only brokers of Odradek send heartbeats that often, and speak about others. Kafka's brokers are judged by their sessions
alone. `SecondVoices` recognises them by heartbeats without the field `silent_brokers`. A new controller has heard no
heartbeat of a broker that died before. It takes such a broker for one of Odradek, unless it has met any of Kafka's.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import attrs

from odradek.metadata_quorum.controller.brokers.broker_registration import DeadBroker
from odradek.metadata_quorum.image.metadata_image import BrokerImage, MetadataImage
from odradek.wire.messages.broker_heartbeat import SilentBroker

__all__ = ["SecondVoices"]


@attrs.frozen
class _Voice:
    """The last heartbeat of one incarnation of a broker."""

    broker_epoch: int
    heard_ms: int
    silent: dict[int, int] | None
    """The broker epoch of each broker that it calls silent; None from Kafka's brokers."""


class SecondVoices:
    """The voices of all brokers in their last heartbeats to one controller. All times are monotonic milliseconds."""

    def __init__(self, suspicion_ms: int) -> None:
        self._suspicion_ms = suspicion_ms
        self._voices: dict[int, _Voice] = {}

    def forget(self) -> None:
        """Forget all voices. Called when the controller becomes active."""
        self._voices.clear()

    def keep(self, broker_ids: Container[int]) -> None:
        """Forget the voices of all other brokers, which are no longer registered."""
        self._voices = {each: voice for each, voice in self._voices.items() if each in broker_ids}

    def note(
        self, broker_id: int, broker_epoch: int, silent: Sequence[SilentBroker] | None, now_ms: int
    ) -> bool:
        """Note a heartbeat. Return True if it speaks against another broker."""
        said = (
            None
            if silent is None
            else {
                each.broker_id: each.broker_epoch
                for each in silent
                if each.broker_id != broker_id and each.silent_ms >= self._suspicion_ms
            }
        )
        self._voices[broker_id] = _Voice(broker_epoch, now_ms, said)
        return bool(said)

    def confirmed(
        self, silent: Sequence[BrokerImage], image: MetadataImage, now_ms: int
    ) -> tuple[DeadBroker, ...]:
        """Return the brokers that have a voice against them, among those that are silent for this controller."""
        since_ms = now_ms - self._suspicion_ms
        return tuple(
            DeadBroker(each.broker_id, each.epoch, since_ms)
            for each in silent
            if self.against(each, image, now_ms) is not None
        )

    def against(self, suspect: BrokerImage, image: MetadataImage, now_ms: int) -> int | None:
        """Return the id of an unfenced broker that calls the suspect silent; None if there is none. If the suspect is
        judged by its session alone, the result is None, too. A voice is as old as its heartbeat, at most half the time of a suspicion.
        """
        if not self._sends_often(suspect):
            return None
        for broker_id, voice in sorted(self._voices.items()):
            broker = image.brokers.get(broker_id)
            if (
                broker is not None
                and not broker.fenced
                and broker.epoch == voice.broker_epoch
                and now_ms - voice.heard_ms <= self._suspicion_ms // 2
                and voice.silent is not None
                and voice.silent.get(suspect.broker_id) == suspect.epoch
            ):
                return broker_id
        return None

    def _sends_often(self, suspect: BrokerImage) -> bool:
        voice = self._voices.get(suspect.broker_id)
        if voice is not None and voice.broker_epoch == suspect.epoch:
            return voice.silent is not None
        return all(each.silent is not None for each in self._voices.values())
