"""An administrator appends to a list in the configuration. The joined value would be too long for a record."""

from __future__ import annotations

from collections.abc import Iterator

from odradek.metadata_quorum.config.config_resources import Operation
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place

WHO = "administrator"
BROKER = 4
LISTS = ("odradek.retiring.log.dirs", "cordoned.log.dirs", "metric.reporters", "ssl.cipher.suites")
TURNS_IN_FULL = 20


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Set a long value, append another one, then delete the key. Do this with letters of one byte and with letters of
    two."""
    for turn in range(max(1, round(TURNS_IN_FULL * scale))):
        for key in LISTS:
            for letter, count in (("x", 32_000), ("\u00e9", 16_000)):
                yield _append(place, key, letter, count, turn)
    yield _last_change(place)


def _last_change(place: Place) -> Outcome:
    rule = "a list of the cluster can still be changed"
    try:
        code = _alter(place, LISTS[0], Operation.SET, "a")
        _alter(place, LISTS[0], Operation.DELETE, None)
    except OSError as error:
        return Outcome(rule, False, str(error))
    return Outcome(rule, code == 0, f"code {code}")


def _append(place: Place, key: str, letter: str, count: int, turn: int) -> Outcome:
    try:
        first = _alter(place, key, Operation.SET, letter * count)
        second = _alter(place, key, Operation.APPEND, letter * (count - 1 - turn))
        _alter(place, key, Operation.DELETE, None)
    except OSError as error:
        return Outcome(f"a value of {key} that fits no record is refused with an answer", False, str(error))
    # A list that accepts only certain words may refuse the value because of its words, with another error code.
    is_refused = second in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
    return Outcome(
        f"a value of {key} that fits no record is refused with an answer",
        is_refused,
        f"SET {first}, APPEND {second}",
    )


def _alter(place: Place, key: str, operation: Operation, value: str | None) -> int:
    resource = AlterConfigsResource(BROKER, "", [AlterableConfig(key, operation, value)])
    with place.admin() as admin:
        answer = admin.call(IncrementalAlterConfigsRequest([resource], False), 1)
    return int(answer.responses[0].error_code)
