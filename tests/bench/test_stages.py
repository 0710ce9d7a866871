"""The stage clocks stand where the request path is, and add up."""

from __future__ import annotations

import pytest

from bench.hot_path.stages import POINTS, STAGES, Stopwatch, locate


@pytest.mark.parametrize(("stage", "point"), POINTS, ids=[point for _, point in POINTS])
def test_point_exists(stage: str, point: str) -> None:
    """A renamed function would silently leave its time to `wake`."""
    holder, name = locate(point)
    assert callable(getattr(holder, name))
    assert stage in STAGES


def test_own_time_leaves_out_wrapped_calls() -> None:
    """A caller's own time excludes that of wrapped functions inside it, and counts them."""
    watch = Stopwatch()
    inner = watch.wrap("inner", "append", lambda: sum(range(20_000)))
    outer = watch.wrap("outer", "dispatch", lambda: [inner() for _ in range(10)])
    outer()
    assert (watch.tallies["inner"].calls, watch.tallies["outer"].calls) == (10, 1)
    assert (watch.tallies["inner"].inside, watch.tallies["outer"].inside) == (0, 10)
    assert watch.tallies["inner"].own_ns > watch.tallies["outer"].own_ns


def test_a_failing_function_is_counted() -> None:
    """An exception passes through and leaves the stack as it was."""
    watch = Stopwatch()

    def fail() -> None:
        raise ValueError("refused")

    failing = watch.wrap("failing", "validate", fail)
    with pytest.raises(ValueError, match="refused"):
        failing()
    assert watch.tallies["failing"].calls == 1
    assert watch.wrap("after", "append", lambda: 7)() == 7
