"""Waits for a long time by many short calls of a module, and prints a line each minute.

If a module has no answer when its time is up, it returns `still_waiting`. It also returns a `sentence` about the
missing things, their number (`left`), and a `remedy`. The control machine then calls it again. So no SSH connection is
idle for long, and the wait continues if a connection breaks.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SLICE_SECONDS = 60


def pace(left: int, seconds: float, first_left: int, first_seconds: float) -> str:
    """Return a text with the number of things that are still missing. If the number has fallen, the text also estimates
    the remaining time. The text is empty if `left` is 0.
    """
    if left <= 0:
        return ""
    text = f"; {left} left"
    done, passed = first_left - left, seconds - first_seconds
    if done > 0 and passed > 0:
        text += f", about {max(1, round(left * passed / done / 60))} min at this pace"
    return text


def wait(
    call: Callable[[int], dict],
    say: Callable[[str], None],
    total_seconds: int,
    now: Callable[[], float] = time.monotonic,
    clock: Callable[[], float] = time.time,
) -> dict:
    """Call a module repeatedly, for a minute each time, until it has an answer. Return its result, or a failure after
    `total_seconds`.

    `call` gets the seconds for which the module may wait. It returns the module's result, which has `still_waiting`
    if the time was too short. `say` prints a line for the operator.
    """
    begun = now()
    first: tuple[int, float] | None = None
    while True:
        left_seconds = total_seconds - (now() - begun)
        result = call(max(0, min(SLICE_SECONDS, int(left_seconds + 0.999))))
        waited = now() - begun
        if not result.get("still_waiting"):
            if "waited_seconds" in result:
                result["waited_seconds"] = round(waited, 1)
            return result
        if waited >= total_seconds:
            # The time is up, so the caller gets a failure that is final.
            result.pop("still_waiting")
            result["msg"] = (
                f"Stopped after {waited:.0f} s: {result['sentence']}. {result.get('remedy', '')}".strip()
            )
            return result
        left = int(result.get("left") or 0)
        first = first or (left, waited)
        ends = time.strftime("%H:%M:%S", time.localtime(clock() + total_seconds - waited))
        say(
            f"still waiting after {waited:.0f} s, until {ends} at the latest{pace(left, waited, *first)}: {result['sentence']}"
        )
