"""The log has configuration values that a controller cannot parse. The controller keeps such a value until its key is
changed."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from odradek.metadata_quorum.controller.controller import Controller
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.features import cluster_wide_min_isr
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from odradek.metadata_quorum.image.unreadable_configs import MetadataErrors
from odradek.metadata_quorum.replica.publisher import difference
from odradek.metadata_quorum.state_machine import ReplicatedStateMachine
from odradek.wire.messages import alter_configs as absolute
from odradek.wire.messages import incremental_alter_configs as incremental
from odradek.wire.messages.metadata_records import ConfigRecord, RemoveTopicRecord, TopicRecord
from tests.quorum.controller.controller_script import InstantLog

TOPIC, BROKER = 2, 4
TOPIC_ID = b"T" * 16
TOLD = (
    TopicRecord("t", TOPIC_ID),
    ConfigRecord(TOPIC, "t", "retention.ms", "5"),
    ConfigRecord(TOPIC, "t", "retention.ms", "for ever"),
    ConfigRecord(BROKER, "", "min.insync.replicas", "none"),
)
SETTINGS = ControllerSettings(static_config={"min.insync.replicas": "2"})
SET, DELETE = 0, 1


def replayed(image: MetadataImage, *records: Any) -> tuple[MetadataImage, MetadataDelta]:
    builder = ImageBuilder(image)
    for offset, record in enumerate(records, image.offset + 1):
        builder.replay(offset, record, 1)
    return builder.build()


def decided(request: Any) -> tuple[int, MetadataImage]:
    """Decide a request, and return the error code and the image after it."""
    log = InstantLog()
    before, _ = replayed(MetadataImage.empty("c"), *TOLD)
    machine = ReplicatedStateMachine(
        Controller(SETTINGS), log, before, random=Random(1), new_uuid=lambda: bytes(16)
    )
    deferred = machine.submit(request, 0)
    log.commit()
    return deferred.response.responses[0].error_code, machine.committed_state


@pytest.mark.parametrize(
    ("operation", "value", "left"),
    [(SET, "5", {"retention.ms": "5"}), (SET, "7", {"retention.ms": "7"}), (DELETE, None, {})],
)
def test_a_change_of_the_key_takes_the_text_away(
    operation: int, value: str | None, left: dict[str, str]
) -> None:
    """A change of the key removes the unreadable value, even if the new value is the one in effect.

    Another release may read the old text.
    """
    config = incremental.AlterableConfig("retention.ms", operation, value)
    code, image = decided(
        incremental.IncrementalAlterConfigsRequest([incremental.AlterConfigsResource(TOPIC, "t", [config])])
    )
    assert (code, dict(image.topic_configs("t"))) == (0, left)
    assert (TOPIC, "t") not in image.unreadable_configs


@pytest.mark.parametrize("configs", [[], [absolute.AlterableConfig("retention.ms", "5")]])
def test_replacing_all_values_takes_the_text_away(configs: list[absolute.AlterableConfig]) -> None:
    """AlterConfigs lists all values that remain, so it removes an unreadable value."""
    code, image = decided(absolute.AlterConfigsRequest([absolute.AlterConfigsResource(TOPIC, "t", configs)]))
    assert (code, dict(image.topic_configs("t"))) == (0, {each.name: each.value for each in configs})
    assert (TOPIC, "t") not in image.unreadable_configs


def test_an_unreadable_minimum_is_none() -> None:
    """An unreadable cluster-wide `min.insync.replicas` counts as missing.

    A new controller writes the key's default for all brokers.
    """
    image, _ = replayed(MetadataImage.empty("c"), *TOLD)
    records = cluster_wide_min_isr(image, SETTINGS)
    assert records == [ConfigRecord(BROKER, "", "min.insync.replicas", "2")]
    image, _ = replayed(image, *records)
    assert (BROKER, "") not in image.unreadable_configs


def test_a_deleted_topic_leaves_nothing() -> None:
    """Deleting a topic removes its unreadable values, so a new topic of this name begins without them."""
    image, _ = replayed(MetadataImage.empty("c"), *TOLD)
    image, delta = replayed(image, RemoveTopicRecord(TOPIC_ID))
    assert (TOPIC, "t") not in image.unreadable_configs
    assert (TOPIC, "t") in delta.changed_configs


def test_each_is_told_and_counted_once() -> None:
    """An unreadable value is logged and counted once.

    It may come in a new record, in the log at a start, or in a leader's snapshot.
    """

    class Lines:
        def __init__(self) -> None:
            self.keys: list[str] = []

        def error(self, event: str, *, key: str, **_: object) -> None:
            assert event == "config.unreadable"
            self.keys.append(key)

    lines = Lines()
    errors = MetadataErrors(lines)
    empty = MetadataImage.empty("c")
    image, delta = replayed(empty, *TOLD)
    errors.look(image, delta)
    assert sorted(lines.keys) == ["min.insync.replicas", "retention.ms"]
    errors.look(image, MetadataDelta.everything(image))
    errors.look(*replayed(image, ConfigRecord(TOPIC, "t", "flush.ms", "1")))
    restored, _ = replayed(empty, *records_of(image))
    errors.look(restored, difference(image, restored))
    assert errors.count == 2
    errors.look(*replayed(image, ConfigRecord(TOPIC, "t", "retention.ms", "never")))
    assert errors.count == 3
