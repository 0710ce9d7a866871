"""Replaces constants of the product by the knobs of a run, and restores them afterwards. SHELL.

`from x import NAME` binds a second reference. So a constant is replaced in the module that defines it, and in each
loaded module that has imported it from there. Two modules may use the same name for different constants. So the
import statements in the sources decide which modules share a constant.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

from sim.knobs.knob_table import KNOBS, Knob

_USERS = ("odradek.", "sim.")
"""Prefixes of the packages whose modules may have imported a constant."""
_places_found: dict[str, tuple[int, tuple[object, ...]]] = {}
"""For each knob path, how many modules were loaded when `places_of` last searched, and the modules or class that it
found.
"""

__all__ = ["described", "places_of", "turned", "usual_value"]


def described(knobs: Mapping[str, int]) -> str:
    """Describe the knobs of a run for a human, with their ranges and usual values."""
    texts = []
    for path, value in knobs.items():
        knob = KNOBS[path]
        texts.append(f"{path} = {value} (of {knob.low} to {knob.high}, usually {usual_value(knob)})")
    return ", ".join(texts)


@contextmanager
def turned(knobs: Mapping[str, int]) -> Iterator[None]:
    """Set the constants to these values while the context lasts. Raises `ValueError` for an unknown knob."""
    unknown = [path for path in knobs if path not in KNOBS]
    if unknown:
        raise ValueError(f"unknown knobs: {', '.join(unknown)}")
    usual = {path: usual_value(KNOBS[path]) for path in knobs}
    try:
        for path, value in knobs.items():
            _put(KNOBS[path], value)
        yield
    finally:
        # `_put` searches for references again, since modules that were imported in the meantime have the drawn values.
        for path, value in usual.items():
            _put(KNOBS[path], value)


def usual_value(knob: Knob) -> int:
    """Return the present value of a knob's constant."""
    value = getattr(_home(knob), knob.name.rpartition(".")[2])
    assert isinstance(value, int)
    return value


def _put(knob: Knob, value: int) -> None:
    for place in places_of(knob):
        setattr(place, knob.name.rpartition(".")[2], value)


def places_of(knob: Knob) -> tuple[object, ...]:
    """Return all modules that have a reference to this constant, or the class that has the constant."""
    home = _home(knob)
    known = _places_found.get(knob.path)
    if known is None or known[0] != len(sys.modules):
        places: list[object] = [home]
        if isinstance(home, ModuleType):
            places += [
                module
                for name, module in list(sys.modules.items())
                if name.startswith(_USERS)
                and knob.name in vars(module)
                and module is not home
                and _imports(module, home.__name__, knob.name)
            ]
        known = _places_found[knob.path] = (len(sys.modules), tuple(places))
    return known[1]


def _home(knob: Knob) -> object:
    """Return the module that defines the constant, or the class in that module."""
    module = import_module(f"odradek.{knob.module}")
    owner = knob.name.rpartition(".")[0]
    return getattr(module, owner) if owner else module


def _imports(module: ModuleType, home: str, name: str) -> bool:
    """True if `module` imports this name from the module `home`."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text()
    found = re.search(rf"^from {re.escape(home)} import (\([^)]*\)|.*)$", source, re.MULTILINE)
    return found is not None and re.search(rf"\b{name}\b", found[1]) is not None
