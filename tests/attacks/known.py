"""The attacks of this folder: each module that has a function `attack` is one."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module

import attrs

import tests.attacks
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place

ROLES = ("stranger", "client", "administrator")
FRAME = frozenset({"__main__", "coordinators", "known", "ordinary", "outcome", "place", "raw", "siege"})
"""Modules that are no attacks."""


@attrs.frozen
class Attack:
    """An attack, and who can carry it out."""

    name: str
    who: str
    purpose: str
    run: Callable[[Place, float], Iterator[Outcome]]
    settings: Mapping[str, str]
    """Keys of the node that the attack needs; those that need none also run in a siege."""
    is_for_one_node: bool = False
    """True if all leaders and coordinators have to be on the node that is attacked."""


def attacks() -> dict[str, Attack]:
    """Return all attacks by name, in the order of the alphabet."""
    names = sorted(module.name for module in pkgutil.iter_modules(tests.attacks.__path__))
    return {name: _load(name) for name in names if name not in FRAME and not name.startswith("test_")}


def _load(name: str) -> Attack:
    module = import_module(f"tests.attacks.{name}")
    assert module.WHO in ROLES, f"{name}.WHO is one of {ROLES}"
    purpose = (module.__doc__ or "").strip().splitlines()[0]
    return Attack(
        name,
        module.WHO,
        purpose,
        module.attack,
        getattr(module, "SETTINGS", {}),
        getattr(module, "ONE_NODE", False),
    )
