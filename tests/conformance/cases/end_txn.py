"""EndTxn: in each state of a transactional id, in each version, and repeated."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.end_txn import EndTxnRequest
from tests.conformance.asking.prepared import NEIGHBOURS, ask_all, prepared_case
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import ABORT, COMMIT, END, STATES, V1, V2, Producer, in_state

WORD = {COMMIT: "commit", ABORT: "abort"}


def _in_a_state(talk: Talk, *, state: str, client: int, version: int) -> None:
    """Ask for each outcome twice, then for the other outcome with the same epoch."""
    topic, _ = talk.topic(f"et-{client}-{version}-{state.replace(' ', '-')}", 2)
    for is_commit in (COMMIT, ABORT):
        producer = in_state(talk, f"et-{client}-{version}-{state}-{is_commit}", state, client, topic)
        producer.look()
        for repeated in (is_commit, is_commit, not is_commit):
            producer.ask(producer.end_request(repeated), version)
            producer.look()


def _by_a_stranger(talk: Talk, *, state: str, client: int) -> None:
    """Ask with epochs just below and above the right one, and with another producer id."""
    producer = in_state(talk, f"et-{client}-{state.replace(' ', '-')}-strange", state, client)
    for is_commit in (COMMIT, ABORT):
        for by, other in ((-1, 0), (1, 0), (2, 0), (0, 1), (-1, 1)):
            producer.ask(producer.end_request(is_commit, by=by, other=other), END[client])
    producer.look()


for _client in (V1, V2):
    for _state in STATES:
        for _version in range(6):
            case(f"end_txn v{_version} of client {_client} when {_state}")(
                partial(_in_a_state, state=_state, client=_client, version=_version)
            )
        case(f"end_txn of client {_client} by a stranger when {_state}")(
            partial(_by_a_stranger, state=_state, client=_client)
        )


@case("end_txn without a transactional id")
def _(talk: Talk) -> None:
    for version in range(6):
        for epoch in (-1, 0, 2**15 - 1):
            talk.ask(EndTxnRequest("", 1, epoch, COMMIT), version)


@case("end_txn with odd producers")
def _(talk: Talk) -> None:
    producer = in_state(talk, "et-odd", "ongoing")
    name = producer.transactional_id
    for version in (4, 5):
        for producer_id, epoch in (
            (-1, -1),
            (producer.producer_id, -1),
            (-1, 0),
            (-2, 0),
            (2**62, 2**15 - 1),
        ):
            talk.ask(EndTxnRequest(name, producer_id, epoch, COMMIT), version)
            talk.ask(EndTxnRequest(name, producer_id, epoch, ABORT), version)


def _several(talk: Talk, *, client: int) -> None:
    """End several transactions of the same producer, one after the other."""
    producer = in_state(talk, f"et-several-{client}", "empty", client)
    for is_commit in (COMMIT, ABORT, ABORT, COMMIT, COMMIT):
        producer.begin()
        producer.look()
        answer = producer.ask(producer.end_request(is_commit), END[client])
        if client == V2:
            producer.learn(answer)
        producer.look()


def _changes_client(talk: Talk, *, clients: tuple[int, ...]) -> None:
    """Upgrade a producer to a newer client between its transactions, and downgrade it again."""
    producer = in_state(talk, f"et-changes-{clients[0]}", "empty", clients[0])
    for client in clients:
        producer.client = client
        producer.begin()
        answer = producer.ask(producer.end_request(COMMIT), END[client])
        if client == V2:
            producer.learn(answer)
        producer.look()
        producer.init()
        producer.look()


def _without_partitions(talk: Talk, *, client: int) -> None:
    """End a transaction in which nothing was written."""
    producer = in_state(talk, f"et-nothing-{client}", "empty", client)
    for is_commit in (ABORT, COMMIT, ABORT):
        answer = producer.ask(producer.end_request(is_commit), END[client])
        if client == V2:
            producer.learn(answer)
        producer.look()


def _late(talk: Talk, *, client: int) -> None:
    """Let an old producer end its transaction after a new producer with the same id has begun another one."""
    old = in_state(talk, f"et-late-{client}", "ongoing", client)
    new = Producer(talk, old.transactional_id, client, old.topic, old.producer_id, old.epoch, names=old.names)
    new.init()
    new.begin()
    for is_commit in (COMMIT, ABORT):
        old.talk.ask(old.end_request(is_commit), END[client])
    new.look()
    new.ask(new.end_request(COMMIT), END[client])
    new.look()


for _client in (V1, V2):
    case(f"end_txn of client {_client} again and again")(partial(_several, client=_client))
    case(f"end_txn of client {_client} without partitions")(partial(_without_partitions, client=_client))
    case(f"end_txn of client {_client} that was replaced")(partial(_late, client=_client))
case("end_txn of a client that is upgraded")(partial(_changes_client, clients=(V1, V2, V2, V1)))
case("end_txn of a client that is downgraded")(partial(_changes_client, clients=(V2, V1, V1, V2)))


@case("end_txn of a transaction whose topic is gone")
def _(talk: Talk) -> None:
    for client in (V1, V2):
        producer = in_state(talk, f"et-gone-{client}", "ongoing", client)
        talk.delete_topic(producer.topic)
        producer.ask(producer.end_request(COMMIT), END[client])
        producer.look()


@prepared_case("end_txn")
def _(talk: Talk, producer: Producer) -> None:
    for version in range(6):
        ask_all(
            talk,
            [
                (producer.end_request(is_commit, by=by, other=other), version)
                for is_commit in (COMMIT, ABORT)
                for by, other in NEIGHBOURS
            ],
        )
