"""The list of attacks. Each module in a subfolder of this folder is an attack, and has a function `attack`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

import attrs

from tests.attacks.outcome import Outcome
from tests.attacks.place import Place

ROOMS = {"strangers": "stranger", "clients": "client", "administrators": "administrator"}
"""The subfolders, and who carries out the attacks in each."""


@attrs.frozen
class Attack:
    """An attack, and who can carry it out."""

    name: str
    who: str
    purpose: str
    run: Callable[[Place, float], Iterator[Outcome]]
    settings: Mapping[str, str]
    """Node settings that the attack needs. A siege runs only attacks without any."""
    is_for_one_node: bool = False
    """True if all leaders and coordinators have to be on the node that is attacked."""


def attacks() -> dict[str, Attack]:
    """Return all attacks by name, in alphabetical order."""
    here = Path(__file__).parent
    found = {path.stem: path.parent.name for room in ROOMS for path in (here / room).glob("*.py")}
    return {name: _load(found[name], name) for name in sorted(found)}


def _load(room: str, name: str) -> Attack:
    module = import_module(f"tests.attacks.{room}.{name}")
    assert ROOMS[room] == module.WHO, f"{name} is an attack of a {module.WHO}, but lies in {room}"
    purpose = " ".join((module.__doc__ or "").strip().partition("\n\n")[0].split())
    return Attack(
        name,
        module.WHO,
        purpose,
        module.attack,
        getattr(module, "SETTINGS", {}),
        getattr(module, "ONE_NODE", False),
    )
