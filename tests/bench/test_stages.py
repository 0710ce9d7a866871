"""The stage clocks of the benchmark wrap functions that exist, and their times add up."""

from __future__ import annotations

import pytest

from bench.hot_path.stages import POINTS, STAGES, Stopwatch, locate


@pytest.mark.parametrize(("stage", "point"), POINTS, ids=[point for _, point in POINTS])
def test_point_exists(stage: str, point: str) -> None:
    """Each measured function exists. If one were renamed, its time would silently go to the stage `wake`."""
    holder, name = locate(point)
    assert callable(getattr(holder, name))
    assert stage in STAGES


def test_own_time_leaves_out_wrapped_calls() -> None:
    """A caller's own time excludes that of the wrapped functions that it calls. The calls are counted."""
    watch = Stopwatch()
    inner = watch.wrap("inner", "append", lambda: sum(range(20_000)))
    outer = watch.wrap("outer", "dispatch", lambda: [inner() for _ in range(10)])
    outer()
    assert (watch.tallies["inner"].calls, watch.tallies["outer"].calls) == (10, 1)
    assert (watch.tallies["inner"].inside, watch.tallies["outer"].inside) == (0, 10)
    assert watch.tallies["inner"].own_ns > watch.tallies["outer"].own_ns


def test_a_failing_function_is_counted() -> None:
    """If a wrapped function raises, the exception passes through, the call is counted, and the stack is as before."""
    watch = Stopwatch()

    def fail() -> None:
        raise ValueError("refused")

    failing = watch.wrap("failing", "validate", fail)
    with pytest.raises(ValueError, match="refused"):
        failing()
    assert watch.tallies["failing"].calls == 1
    assert watch.wrap("after", "append", lambda: 7)() == 7
