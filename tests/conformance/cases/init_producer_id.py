"""InitProducerId: ids for idempotent producers, and for transactional ones (KIP-98, KIP-360)."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from tests.conformance.asking.prepared import NEIGHBOURS, ask_all, prepared_case
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import STATES, STRANGER, TIMEOUT_MS, V1, V2, Producer, in_state


def _init_producer_id(
    talk: Talk, *, version: int, transactional_id: str | None = None, producer: tuple[int, int] = (-1, -1)
) -> None:
    talk.ask(InitProducerIdRequest(transactional_id, 60_000, *producer), version)


for _version in range(6):
    case(f"init_producer_id v{_version}")(partial(_init_producer_id, version=_version))
case("init_producer_id with an empty transactional id")(
    partial(_init_producer_id, version=4, transactional_id="")
)
for _producer in ((5, -1), (-1, 5), (5, 5), (-2, -1), (-1, -2), (-2, -2), (5, -2)):
    case(f"init_producer_id of producer {_producer[0]} epoch {_producer[1]}")(
        partial(_init_producer_id, version=4, producer=_producer)
    )

MAX_TIMEOUT_MS = 900_000
"""The default of `transaction.max.timeout.ms`."""
RECOVERY_SINCE = 3
"""The first version in which a producer sends its own producer id and epoch."""


def _empty_id(talk: Talk, *, version: int) -> None:
    for producer in ((-1, -1), (5, 5), (5, -1)):
        _init_producer_id(talk, version=version, transactional_id="", producer=producer)


def _fresh(talk: Talk, *, version: int) -> None:
    """Initialize the same id three times. Each call raises the epoch by one."""
    producer = Producer(talk, talk.name(f"id-fresh-{version}"), V2)
    for _ in range(3):
        producer.learn(producer.ask(producer.init_request(), version))
        producer.look()


def _timeouts(talk: Talk, *, version: int) -> None:
    producer = Producer(talk, talk.name(f"id-timeouts-{version}"), V2)
    for timeout_ms in (0, -1, -(2**31), MAX_TIMEOUT_MS + 1, 2**31 - 1, 1, MAX_TIMEOUT_MS, TIMEOUT_MS):
        producer.timeout_ms = timeout_ms
        producer.learn(producer.ask(producer.init_request(), version))
        producer.look()
        for name in (None, ""):
            talk.ask(InitProducerIdRequest(name, timeout_ms), version)
    producer.timeout_ms = 0
    producer.ask(producer.init_request(5, -1), version)
    producer.ask(producer.init_request(5, 5), version)


def _unknown(talk: Talk, *, version: int) -> None:
    """Initialize an unknown transactional id for a producer that sends an id and an epoch."""
    for number, claimed in enumerate(
        ((5, 5), (STRANGER, 0), (0, 0), (5, 2**15 - 2), (5, 2**15 - 1), (5, -1), (-1, 5), (-2, -2))
    ):
        producer = Producer(talk, talk.name(f"id-unknown-{version}-{number}"), V2)
        producer.learn(producer.ask(producer.init_request(*claimed), version))
        producer.look()
        producer.learn(producer.ask(producer.init_request(*claimed), version))
        producer.look()


for _version in range(6):
    case(f"init_producer_id v{_version} with an empty transactional id")(partial(_empty_id, version=_version))
    case(f"init_producer_id v{_version} with a transactional id")(partial(_fresh, version=_version))
    case(f"init_producer_id v{_version} with timeouts")(partial(_timeouts, version=_version))
for _version in range(RECOVERY_SINCE, 6):
    case(f"init_producer_id v{_version} of a producer that nobody knows")(partial(_unknown, version=_version))


def _begins(talk: Talk, *, state: str, client: int, version: int) -> None:
    """Start a new producer in each state of its transactional id."""
    producer = in_state(talk, f"ip-{client}-{version}-{state.replace(' ', '-')}", state, client)
    for _ in range(2):
        producer.learn(producer.ask(producer.init_request(), version))
        producer.look()


def _recovers(talk: Talk, *, state: str, client: int, version: int) -> None:
    """Resume a producer after an error, with the right producer id and epoch and with wrong ones."""
    topic, _ = talk.topic(f"ipr-{client}-{version}-{state.replace(' ', '-')}", 2)
    for number, (by, other) in enumerate(((0, 0), (-1, 0), (1, 0), (2, 0), (0, 1), (-1, 1), (1, 1))):
        stem = f"ipr-{client}-{version}-{state}-{number}"
        producer = in_state(talk, stem, state, client, topic)
        if producer.epoch + by < 0:
            continue
        claimed = (producer.producer_id + other, producer.epoch + by)
        for _ in range(3):
            response = producer.ask(producer.init_request(*claimed), version)
            producer.look()
        producer.learn(response)
        producer.ask(producer.init_request(producer.producer_id, producer.epoch), version)
        producer.look()


for _state in STATES:
    for _client in (V1, V2):
        for _version in range(6):
            case(f"init_producer_id v{_version} of client {_client} when {_state}")(
                partial(_begins, state=_state, client=_client, version=_version)
            )
        for _version in range(RECOVERY_SINCE, 6):
            case(f"init_producer_id v{_version} of client {_client} that recovers when {_state}")(
                partial(_recovers, state=_state, client=_client, version=_version)
            )


@prepared_case("init_producer_id")
def _(talk: Talk, producer: Producer) -> None:
    asked = [(producer.init_request(), version) for version in range(6)]
    asked += [
        (producer.init_request(producer.producer_id + other, producer.epoch + by), version)
        for version in (3, 4, 5)
        for by, other in NEIGHBOURS
        if producer.epoch + by >= 0
    ]
    ask_all(talk, asked)
