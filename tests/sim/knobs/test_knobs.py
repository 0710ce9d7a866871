"""Each numeric constant is a knob or has a reason not to be.

A changed knob takes effect in every module that imports it.
"""

from __future__ import annotations

import re
import sys
from random import Random
from types import ModuleType

import pytest

from odradek.data_plane.log.segments import scan
from odradek.metadata_quorum.image.image_builder import Interned
from sim.alone.parts import knobs_of
from sim.knobs.knob_table import KNOBS, draw_knobs
from sim.knobs.turning import described, places_of, turned, usual_value
from sim.options import RunOptions
from sim.replay import difference, options_with
from tests.sim.knobs.constants import constants, imported_otherwise, used_at_import
from tests.sim.knobs.fixed_constants import MODULES, named

SCAN_BYTES = "data_plane.log.segments.scan.RECOVERY_CHUNK_BYTES"
INTERNED = "metadata_quorum.image.image_builder.Interned._LIMIT"
_TIME = re.compile(r"_(HOURS|DAYS|SECONDS|MS|NANOSECONDS)(_MIN|_MAX)?$|^_?SECONDS|_SECONDS_")
_SENTINEL = re.compile(r"^_?(NO_|UNKNOWN|UNDEFINED)")
_END_OF_TYPE = re.compile(r"\(?1 << (63|31|62|16|15|7|32)\)? - 1|2 \*\* 31 - 1|2147483647|32767|1 << 62|-.*")


def is_fixed(path: str, source: str, by_name: dict[str, str]) -> bool:
    """True if there is a reason why the constant is not a knob."""
    name = path.rpartition(".")[2]
    return (
        path.startswith(tuple(MODULES))
        or path in by_name
        or _TIME.search(name) is not None
        or _SENTINEL.match(name) is not None
        or _END_OF_TYPE.fullmatch(source) is not None
    )


@pytest.mark.long
def test_each_numeric_constant_is_a_knob_or_has_a_reason() -> None:
    """Each numeric constant is a row of `sim/knobs/knob_table.py` or has a reason in `fixed_constants.py`."""
    by_name = named()
    neither = [
        path for path, text in constants().items() if path not in KNOBS and not is_fixed(path, text, by_name)
    ]
    assert neither == []
    assert sorted(path for path in (*KNOBS, *by_name) if path not in constants()) == [], (
        "not a constant of the product"
    )
    assert sorted(path for path in by_name if path in KNOBS) == [], "both a knob and fixed"
    prefixes = [each for each in MODULES if not any(path.startswith(each) for path in constants())]
    assert prefixes == [], "remove these modules from MODULES: they have no constants"


@pytest.mark.long
def test_a_knob_can_be_replaced() -> None:
    """No module reads a knob at import. Knobs are imported only from their own module and under their own names."""
    for knob in KNOBS.values():
        name = knob.name.rpartition(".")[2]
        assert used_at_import(knob.module, name) == [], (
            f"{knob.path} is a knob, but a module reads it at import"
        )
        assert imported_otherwise(knob.module, name) == [], (
            f"{knob.path} is a knob, but is renamed or imported indirectly"
        )


def test_a_drawn_value_is_never_above_the_usual_one() -> None:
    """No range of a knob exceeds the product's constant, and the lowest value of each range is drawn."""
    for knob in KNOBS.values():
        assert 0 <= knob.low <= knob.high <= usual_value(knob), knob
    drawn = [draw_knobs(Random(f"{seed}/knobs")) for seed in range(400)]
    assert 0.4 < sum(not each for each in drawn) / len(drawn) < 0.6
    for path, knob in KNOBS.items():
        values = [each[path] for each in drawn if path in each]
        assert min(values) == knob.low
        assert max(values) <= knob.high
    assert 0.1 < sum(len(each) > len(KNOBS) / 5 for each in drawn) / len(drawn) < 0.3


def test_a_turned_knob_is_seen_everywhere_and_put_back() -> None:
    """A changed knob has its new value in its own module and in every importer. The old value returns, also after an
    error."""
    from odradek.data_plane.log import recovery
    from odradek.data_plane.log.directory import log_loader

    usual = scan.RECOVERY_CHUNK_BYTES
    assert {recovery, log_loader} <= set(places_of(KNOBS[SCAN_BYTES]))

    def fail_when_turned() -> None:
        with turned({SCAN_BYTES: 61, INTERNED: 2}):
            seen = [vars(module)["RECOVERY_CHUNK_BYTES"] for module in (scan, recovery, log_loader)]
            assert seen == [61, 61, 61]
            assert Interned._LIMIT == 2
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_when_turned()
    seen = [vars(module)["RECOVERY_CHUNK_BYTES"] for module in (scan, recovery, log_loader)]
    assert seen == [usual, usual, usual]
    assert Interned._LIMIT == 4096
    with pytest.raises(ValueError, match="unknown knobs: sideways"), turned({"sideways": 1}):
        pass


def test_one_name_of_two_constants_is_replaced_where_it_was_imported_from() -> None:
    """A constant of the same name in another module is not changed. A module loaded later also gets the old value back
    at the end."""
    path = "metadata_quorum.replica.log_reading.READ_BYTES"
    from odradek.data_plane.coordination import decision_log

    late = ModuleType("odradek.loaded_late")
    late.__file__ = __file__
    with turned({path: 3}):
        assert decision_log.READ_BYTES == 1 << 20
        vars(late)["READ_BYTES"] = 3
        sys.modules[late.__name__] = late
    try:
        assert vars(late)["READ_BYTES"] == usual_value(KNOBS[path])
    finally:
        del sys.modules[late.__name__]


LATE_IMPORT = """
from odradek.metadata_quorum.replica.log_reading import READ_BYTES
"""
"""The source of the module that is loaded late. For inspection, it claims to come from this file."""


def test_options_have_the_knobs_of_a_run() -> None:
    """A run's options record its knobs, so that they can be replayed and left out one by one. Replay commands name the
    ranges."""
    options = next(
        options for seed in range(100) if len((options := RunOptions.draw(seed)).knobs) in range(2, 6)
    )
    assert RunOptions.from_json(options.to_json()) == options
    plain = options_with(options, {"knobs": {}})
    assert plain.knobs == {}
    assert options_with(plain, difference(plain, options)) == options
    smaller = {name: each.knobs for name, each in options.simpler() if name.startswith("knobs")}
    assert smaller["knobs -all"] == {}
    for path in options.knobs:
        assert smaller[f"knobs -{path}"] == {each: at for each, at in options.knobs.items() if each != path}
        assert f"{path} = {options.knobs[path]} (of {KNOBS[path].low} to" in described(options.knobs)
    for profile in ("perf", "calm", "broken"):
        assert not any(RunOptions.draw(seed, profile).knobs for seed in range(20))


def test_parts_alone_have_knobs_as_well() -> None:
    """Half of the schedules of parts alone also have knobs, drawn for each schedule."""
    drawn = [knobs_of("replication", seed) for seed in range(100)]
    assert 30 < sum(bool(each) for each in drawn) < 70
    assert drawn != [knobs_of("groups", seed) for seed in range(100)]
