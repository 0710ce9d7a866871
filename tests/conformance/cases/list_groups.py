"""ListGroups: all groups, by state and by type."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tests.conformance.asking.members import Member, stable
from tests.conformance.asking.offsets import commit
from tests.conformance.asking.talk import Talk, case


def _in_all_states(talk: Talk, stem: str) -> None:
    """Make one group per state, all with similar names."""
    stable(talk, talk.name(f"{stem}-stable"))
    (left,) = stable(talk, talk.name(f"{stem}-left"))
    left.leave(silently=True)
    name, _ = talk.topic(stem)
    commit(talk, talk.name(f"{stem}-offsets"), name, 5)
    awaiting = Member(talk, talk.name(f"{stem}-awaiting"), kind="connect", protocols=(("p", b""),))
    awaiting.join(silently=True)
    (preparing,) = stable(talk, talk.name(f"{stem}-preparing"))
    second = Member(talk, preparing.group, "B")
    second.send_join()
    second.joined(silently=True)
    second.send_join()
    preparing.wait_for_rebalance()


def _list(
    talk: Talk, stem: str, version: int, states: tuple[str, ...] = (), types: tuple[str, ...] = ()
) -> None:
    def ours(response: ListGroupsResponse) -> ListGroupsResponse:
        response.groups = [
            group
            for group in response.groups
            if group.group_id.startswith(stem) and talk.tag in group.group_id
        ]
        return response

    talk.ask(ListGroupsRequest(list(states), list(types)), version, ours)


def _versions(talk: Talk, *, version: int) -> None:
    stem = f"lg{version}"
    _in_all_states(talk, stem)
    _list(talk, stem, version)


for _version in range(6):
    case(f"list_groups v{_version}")(partial(_versions, version=_version))

STATES: tuple[tuple[str, ...], ...] = (
    ("Stable",),
    ("stable",),
    ("STABLE",),
    ("Empty",),
    ("PreparingRebalance",),
    ("preparing_rebalance",),
    ("CompletingRebalance",),
    ("Dead",),
    ("Assigning",),
    ("Reconciling",),
    ("NotReady",),
    ("Unknown",),
    ("",),
    ("nonsense",),
    ("Stable", "Empty"),
    ("Stable", "Stable"),
    ("Stable", "nonsense"),
)
TYPES: tuple[tuple[str, ...], ...] = (
    ("classic",),
    ("Classic",),
    ("consumer",),
    ("share",),
    ("streams",),
    ("unknown",),
    ("",),
    ("nonsense",),
    ("classic", "consumer"),
    ("classic", "nonsense"),
)


def _filters(talk: Talk, *, states: tuple[tuple[str, ...], ...], types: tuple[tuple[str, ...], ...]) -> None:
    stem = "lg-" + ("states" if len(states) > 1 else "types")
    _in_all_states(talk, stem)
    for version in (4, 5):
        for some_states in states:
            for some_types in types if version >= 5 else ((),):
                _list(talk, stem, version, some_states, some_types)


case("list_groups by state")(partial(_filters, states=STATES, types=((),)))
case("list_groups by type")(partial(_filters, states=((),), types=TYPES))


@case("list_groups by state and type")
def _(talk: Talk) -> None:
    _in_all_states(talk, "lg-both")
    for states, types in (
        (("Stable",), ("classic",)),
        (("Stable",), ("consumer",)),
        (("nonsense",), ("classic",)),
        (("Empty", "Stable"), ("classic", "share")),
    ):
        _list(talk, "lg-both", 5, states, types)


@case("list_groups of unusual names")
def _(talk: Talk) -> None:
    name, _ = talk.topic("lg-unusual")
    for group in ("lg-unusual ü", "lg-unusual a b", "lg-unusual " + "x" * 300):
        commit(talk, talk.name(group), name, 1)
    _list(talk, "lg-unusual", 5)
