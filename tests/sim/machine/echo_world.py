"""A world with clients and an echo server that crashes repeatedly. As a program it prints the digest of a run."""

from __future__ import annotations

import sys
from random import Random

import trio

from odradek.env.ports import ConnectionLost, Env
from sim.machine.world import World
from tests.sim.machine import echo


async def serve(env: Env) -> None:
    """Run the echo server as a node's process."""
    async with trio.open_nursery() as tasks:
        await echo.serve(env, tasks)


def run(seed: int) -> tuple[str, int, int]:
    """Run a world; return the digest, the number of answered calls, and the number of blocks in the server's file."""
    world = World(seed)
    answered: list[bytes] = []

    async def client(name: str, calls: int) -> None:
        env = world.node_env(name)
        for number in range(calls):
            block = f"{name}-{number:05}".encode()
            with env.clock.timeout_at(env.clock.monotonic() + 2.0):
                try:
                    answer = await echo.call(env, "server", block)
                except ConnectionLost:
                    continue
                assert answer == block
                answered.append(block)
            await env.clock.sleep_until(env.clock.monotonic() + env.random.random() * 0.1)

    async def killer(random: Random) -> None:
        for _ in range(5):
            await world.sleep(random.random())
            world.crash("server", random.choice(("all", "synced", "random")))
            await world.sleep(random.random() * 0.2)
            world.start("server", serve)

    async def main() -> None:
        world.start("server", serve)
        async with trio.open_nursery() as tasks:
            for index in range(3):
                tasks.start_soon(client, f"c{index}", 20)
            tasks.start_soon(killer, world.random)

    world.run(main)
    content = world.machine("server").disk.open_dir("/data").read_bytes("echo.log")
    blocks = {content[at : at + echo.BLOCK_BYTES] for at in range(0, len(content), echo.BLOCK_BYTES)}
    assert set(answered) <= blocks
    return world.digest(), len(answered), len(blocks)


if __name__ == "__main__":
    for text in sys.argv[1:]:
        print(*run(int(text)))
