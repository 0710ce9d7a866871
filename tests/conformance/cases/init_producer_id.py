"""InitProducerId: ids for idempotent producers."""

from __future__ import annotations

from functools import partial

from tests.conformance.talk import Talk, case
from wire.messages.init_producer_id import InitProducerIdRequest


def _init_producer_id(
    talk: Talk, *, version: int, transactional_id: str | None = None, producer: tuple[int, int] = (-1, -1)
) -> None:
    talk.ask(InitProducerIdRequest(transactional_id, 60_000, *producer), version)


for _version in range(6):
    case(f"init_producer_id v{_version}")(partial(_init_producer_id, version=_version))
case("init_producer_id with an empty transactional id")(
    partial(_init_producer_id, version=4, transactional_id="")
)
case("init_producer_id with a transactional id")(partial(_init_producer_id, version=4, transactional_id="t"))
for _producer in ((5, -1), (-1, 5), (5, 5), (-2, -1), (-1, -2), (-2, -2), (5, -2)):
    case(f"init_producer_id of producer {_producer[0]} epoch {_producer[1]}")(
        partial(_init_producer_id, version=4, producer=_producer)
    )
