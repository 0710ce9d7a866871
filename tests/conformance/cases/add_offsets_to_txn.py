"""AddOffsetsToTxn: the group's partition of `__consumer_offsets` becomes part of the transaction."""

from __future__ import annotations

from functools import partial

from tests.conformance.asking.prepared import NEIGHBOURS, ask_all, prepared_case
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import STATES, V1, V2, Producer, in_state


def _in_a_state(talk: Talk, *, state: str, client: int, version: int) -> None:
    """Send the request with wrong epochs and producer ids, then twice with the right ones."""
    producer = in_state(talk, f"ao-{client}-{version}-{state.replace(' ', '-')}", state, client)
    group = talk.name("ao-group")
    for by, other in ((-1, 0), (1, 0), (0, 1), (1, 1), (0, 0), (0, 0)):
        producer.ask(producer.offsets_request(group, by=by, other=other), version)
    producer.ask(producer.offsets_request(talk.name("ao-another")), version)
    producer.look()


for _state in STATES:
    for _client in (V1, V2):
        for _version in range(5):
            case(f"add_offsets_to_txn v{_version} of client {_client} when {_state}")(
                partial(_in_a_state, state=_state, client=_client, version=_version)
            )


@case("add_offsets_to_txn without names")
def _(talk: Talk) -> None:
    producer = in_state(talk, "ao-names", "empty")
    nobody = Producer(talk, "", V1, producer.topic)
    for version in range(5):
        talk.ask(nobody.offsets_request("g"), version)
        talk.ask(nobody.offsets_request(""), version)
        producer.ask(producer.offsets_request(""), version)
        producer.ask(producer.offsets_request("", by=1), version)
    producer.look()


@prepared_case("add_offsets_to_txn")
def _(talk: Talk, producer: Producer) -> None:
    ask_all(
        talk,
        [
            (producer.offsets_request(talk.name("ao-prepared"), by=by, other=other), version)
            for version in range(5)
            for by, other in NEIGHBOURS
        ],
    )
