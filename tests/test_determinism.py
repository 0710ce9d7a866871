"""Runs of a simulated node replay from their seeds, byte for byte.

The simulator seeds a private random generator of trio's scheduler, so these tests also check the pinned version of
trio. `tests/sim/test_seeds.py` tests the same for whole clusters.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sim.machine.weather import Weather
from sim.machine.world import World
from sim.scenarios.lone_node_scenario import Scenario
from tests.sim.machine import echo_world

SEEDS = ("1", "2")


def node_digest(seed: int) -> str:
    """Return the digest of a whole node's run, in which it dies and recovers while clients work."""
    scenario = Scenario(seed, crashes=2)
    scenario.run()
    return scenario.world.digest()


def _digests(hash_seed: str) -> list[str]:
    """Return the digests of runs in a process of its own, with another memory layout."""
    script = (
        f"import sys, random; pad = [bytearray(random.randrange(1, 5000)) for _ in range({hash_seed} * 500)];"
        "from tests.sim.machine import echo_world; from tests.test_determinism import node_digest;"
        "[print(*echo_world.run(int(text)), node_digest(int(text)))"
        " for text in sys.argv[1:]]"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *SEEDS],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.long
def test_two_processes_with_different_hash_seeds_agree() -> None:
    """Processes with different hash seeds give one digest per seed, with crashes, timeouts, cancellations and torn
    disks."""
    first, second = _digests("1"), _digests("3")
    here = [" ".join(map(str, (*echo_world.run(int(text)), node_digest(int(text))))) for text in SEEDS]
    assert first == second == here
    assert len(set(first)) == len(SEEDS)


def test_the_digest_sees_a_change() -> None:
    """If one byte of a file or one microsecond differs, the digest differs."""

    def digest(data: bytes, seconds: float) -> str:
        world = World(1, Weather())

        async def main() -> None:
            env = world.node_env("a")
            await env.clock.sleep_until(seconds)
            listener = env.network.listen("", 1)
            conn = await env.network.connect("localhost", listener.port)
            conn.send([data])

        world.run(main)
        return world.digest()

    assert digest(b"a", 1.0) == digest(b"a", 1.0)
    assert len({digest(b"a", 1.0), digest(b"b", 1.0), digest(b"a", 1.000001)}) == 3
