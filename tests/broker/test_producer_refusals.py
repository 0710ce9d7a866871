"""Log lines about batches that are refused because of their producer's sequence number or epoch."""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import capture_logs

from odradek.data_plane.handlers.producing.producer_refusals import ProducerRefusals
from odradek.data_plane.line_budget import INTERVAL_SECONDS, LINES_MAX
from odradek.serving.contract import Context
from odradek.wire.errors import ErrorCode, KafkaError
from sim.machine.weather import Weather
from sim.machine.world import World
from tests.log.support import append, batch, new_log
from tests.replication.brokers import ReplicatedTopic

ID = 4711


def numbered(epoch: int, sequence: int, count: int = 1) -> bytearray:
    return batch(count, producer_id=ID, producer_epoch=epoch, base_sequence=sequence)


@pytest.mark.parametrize(
    ("epoch", "sequence", "error"),
    [
        (1, 9, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (2, 4, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (0, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_both_sides_are_named(epoch: int, sequence: int, error: ErrorCode) -> None:
    """The log line of a refusal names what the client sent and what the log knew. It also has the client's address and
    the number of the request on its connection."""

    async def script(cluster: ReplicatedTopic) -> None:
        assert await cluster.send(1, numbered(1, 0, 5)) == (0, 0)
        with capture_logs() as lines:
            assert await cluster.send(1, numbered(epoch, sequence, 2)) == (error, -1)
        (line,) = [each for each in lines if each["event"] == "produce.sequence_refused"]
        assert line.pop("client").startswith("10.")
        assert line.pop("request") > 0
        assert line == {
            "log_level": "warning",
            "event": "produce.sequence_refused",
            "node": 1,
            "error": error.name,
            "topic": "t",
            "partition": 0,
            "producer_id": ID,
            "producer_epoch": epoch,
            "base_sequence": sequence,
            "records": 2,
            "known_epoch": 1,
            "known_sequence": 4,
            "known_offset": 4,
            "log_end_offset": 5,
            "client_id": "client",
            "held_back": 0,
        }

    ReplicatedTopic().play(script)


def test_lines_are_bounded() -> None:
    """If a client repeats a refused batch, a bounded number of lines is logged. The others are counted."""
    world = World(1, Weather())
    refusals = ProducerRefusals(world.node_env("node").clock, structlog.get_logger())
    log = new_log()
    append(log, numbered(0, 0))
    refused = numbered(0, 7)

    def refuse(times: int) -> list[int]:
        """Repeat the refused batch. Return, for each logged line, how many lines were held back before it."""
        with capture_logs() as lines:
            for _ in range(times):
                with pytest.raises(KafkaError) as error:
                    append(log, refused)
                refusals.note(Context("PLAINTEXT", "127.0.0.1"), log, refused, error.value)
        return [line["held_back"] for line in lines]

    async def script() -> None:
        assert refuse(LINES_MAX + 30) == [0] * LINES_MAX
        await world.sleep(INTERVAL_SECONDS)
        assert refuse(2) == [30, 0]

    world.run(script)
