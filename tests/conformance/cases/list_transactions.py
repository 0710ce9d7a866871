"""ListTransactions: filters by state, producer id, duration (KIP-994) and a pattern of names (KIP-1152)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from odradek.wire.messages.list_transactions import ListTransactionsRequest
from tests.conformance.asking.prepared import STATE, prepared_case
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import ABORT, COMMIT, V1, V2, Producer, in_state

CREATED = ("empty", "ongoing", "committed", "aborted")
HOUR_MS = 3_600_000


def _only(names: set[str]) -> Callable[[Any], Any]:
    """Keep only these transactional ids, since other cases leave transactions behind, too."""

    def note(response: Any) -> Any:
        response.transaction_states = [
            each for each in response.transaction_states if each.transactional_id in names
        ]
        return response

    return note


def _created(talk: Talk, stem: str) -> list[Producer]:
    topic, _ = talk.topic(stem, 2)
    return [in_state(talk, f"{stem}-{state}", state, V2, topic) for state in CREATED]


def _versions(talk: Talk, *, version: int) -> None:
    producers = _created(talk, f"lt-{version}")
    mine = _only({each.transactional_id for each in producers})

    def ask(states: list[str] = [], ids: list[int] = [], *rest: Any) -> None:  # noqa: B006  # not changed
        talk.ask(ListTransactionsRequest(states, ids, *rest), version, mine)

    ask()
    for states in (
        ["Empty"],
        ["Ongoing"],
        ["CompleteCommit"],
        ["CompleteAbort"],
        ["PrepareCommit"],
        ["PrepareAbort"],
        ["PrepareEpochFence"],
        ["Dead"],
        ["Ongoing", "Empty"],
        ["ongoing"],
        ["ONGOING"],
        [""],
        ["Unknown", "Ongoing"],
        ["Unknown"],
        ["Unknown", "Unknown", "Others"],
        ["Ongoing", "Ongoing"],
        [" Ongoing"],
    ):
        ask(states)
    ids = [each.producer_id for each in producers]
    for wanted in (ids[:1], ids, [ids[1], -1], [-1], [0], [ids[0], ids[0]]):
        ask([], wanted)
    ask(["Ongoing"], ids[:2])
    ask(["Empty"], ids[1:2])
    ask(["Unknown"], ids)


def _durations(talk: Talk, *, version: int) -> None:
    producers = _created(talk, f"lt-durations-{version}")
    mine = _only({each.transactional_id for each in producers})
    for duration_ms in (-1, -2, -HOUR_MS, 0, HOUR_MS, 2**62):
        for states in ([], ["Ongoing"], ["Empty"]):
            talk.ask(ListTransactionsRequest(states, [], duration_ms), version, mine)


for _version in range(3):
    case(f"list_transactions v{_version}")(partial(_versions, version=_version))
for _version in (1, 2):
    case(f"list_transactions v{_version} by durations")(partial(_durations, version=_version))


@case("list_transactions by patterns")
def _(talk: Talk) -> None:
    producers = _created(talk, "lt-patterns")
    mine = _only({each.transactional_id for each in producers})
    tag = talk.tag
    for pattern in (
        None,
        "",
        ".*",
        f"id-lt-patterns-.*-{tag}",
        "id-lt-patterns",
        f"id-lt-patterns-(empty|ongoing)-{tag}",
        f".*e.*{tag}",
        f"ID-LT-PATTERNS-.*-{tag}",
        f"(?i)ID-LT-PATTERNS-.*-{tag}",
        f"id-lt-patterns-\\w+-{tag}",
        f"id-lt-patterns-[a-f].*-{tag}",
        f"^id-lt-patterns-.*{tag}$",
        f"(?P<x>id)-lt.*{tag}",
        "nobody",
        "[",
        "(",
        "*",
        "a{2",
        "a{1001}",
        "a**",
        "\\",
        "(?=id).*",
        "(a)\\1",
        "\\p{Greek}",
        "(?<x>id).*",
        " ",
        "ü",
    ):
        talk.ask(ListTransactionsRequest([], [], -1, pattern), 2, mine)
    talk.ask(ListTransactionsRequest(["Ongoing", "Nothing"], [], -1, ".*"), 2, mine)
    talk.ask(ListTransactionsRequest(["Nothing"], [], -1, "["), 2, mine)
    talk.ask(ListTransactionsRequest([], [producers[0].producer_id], -1, "id-.*"), 2, mine)
    talk.ask(ListTransactionsRequest([], [], HOUR_MS, "id-.*"), 2, mine)


@case("list_transactions of one that has timed out")
def _(talk: Talk) -> None:
    for client in (V1, V2):
        producer = in_state(talk, f"lt-late-{client}", "timed out", client)
        talk.ask(ListTransactionsRequest([], []), 2, _only({producer.transactional_id}))


@prepared_case("list_transactions")
def _(talk: Talk, producer: Producer) -> None:
    for version in range(3):
        for states in ([], list(STATE.values()), [STATE[COMMIT]], [STATE[ABORT]], ["Ongoing"]):
            request = ListTransactionsRequest(states, [])
            talk.ask(request, version, _only({producer.transactional_id}))
