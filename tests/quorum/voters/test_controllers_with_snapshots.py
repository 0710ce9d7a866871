"""Controllers that write snapshots all the time. Logs stay short, and nodes that lag or begin anew fetch a snapshot."""

from __future__ import annotations

import pytest

from odradek.metadata_quorum.replica.checkpoint_files import parse_snapshot_name
from odradek.metadata_quorum.replica.snapshots import SnapshotSettings
from sim.machine.weather import Weather
from sim.machine.world import World
from tests.quorum.voters.controllers import Controllers, add, host_of, play, register
from tests.quorum.voters.node_parts import PATH
from tests.quorum.voters.test_controllers import restart
from tests.schedule import seeds

OFTEN = SnapshotSettings(bytes_between_max=2000)


def snapshot_ends(controllers: Controllers, node_id: int) -> list[int]:
    """Return the end offsets of the snapshots on a node's disk."""
    directory = controllers.world.machine(host_of(node_id)).disk.open_dir(PATH).subdir("__cluster_metadata-0")
    return [found[0] for found in map(parse_snapshot_name, directory.list()) if found is not None]


async def decide(controllers: Controllers, first: int, count: int) -> None:
    for number in range(first, first + count):
        assert (await controllers.ask(register(number), 120.0)).error_code == 0


def test_every_node_writes_its_own_and_lets_the_log_go() -> None:
    """Leader and followers write snapshots (KIP-630). A snapshot removes the covered log and older snapshots."""

    async def script(world: World, controllers: Controllers) -> None:
        await decide(controllers, 100, 60)
        await controllers.agree()
        await controllers.until(
            lambda: all(each.log.log_start_offset > 20 for each in controllers.members.values())
        )
        for node_id, member in controllers.members.items():
            assert len(snapshot_ends(controllers, node_id)) == 1
            assert 20 < member.log.log_start_offset <= snapshot_ends(controllers, node_id)[0]

    play(script, observers=(9,), snapshots=OFTEN)


@pytest.mark.parametrize("static", [False, True])
def test_who_was_away_for_long_loads_the_leaders_snapshot(static: bool) -> None:
    """A voter was away, and the leader's log begins above the voter's end. The voter fetches a snapshot, and then
    votes as before."""

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        await decide(controllers, 100, 5)
        behind = next(each for each in (1, 2, 3) if each != leader.node_id)
        controllers.crash(behind)
        await decide(controllers, 200, 60)
        await controllers.until(lambda: leader.log.log_start_offset > 30)
        controllers.start(behind)
        await controllers.until(lambda: behind in controllers.members)
        await controllers.agree()
        assert "metadata.snapshot_installed" in controllers.members[behind].journal.events
        other = next(each for each in (1, 2, 3) if each not in (leader.node_id, behind))
        controllers.crash(other)
        await decide(controllers, 300, 5)
        await controllers.agree()

    play(script, static=static, snapshots=OFTEN)


def test_all_start_again_from_their_snapshots() -> None:
    """All nodes restart from their snapshots. The image, the voters and the epoch are as before."""

    async def script(world: World, controllers: Controllers) -> None:
        await decide(controllers, 100, 60)
        await controllers.agree()
        leader = await controllers.leader()
        epoch = leader.service.quorum.leader_epoch
        for node_id in (1, 2, 3):
            controllers.crash(node_id, "synced")
        controllers.start_all()
        await controllers.until(lambda: len(controllers.members) == 3)
        again = await controllers.leader()
        assert again.service.quorum.leader_epoch > epoch
        assert again.service.quorum.voters == controllers.voters
        assert again.service.committed_image.brokers.keys() == set(range(100, 160))
        await decide(controllers, 300, 3)
        await controllers.agree()

    play(script, snapshots=OFTEN)


def test_voters_that_joined_later_are_told_by_their_own_snapshots() -> None:
    """A node was formatted without voters, and the log named the voters later. The node's own snapshot contains the
    voters, too (KIP-853).

    Otherwise the node would not know after a restart whether it votes, and who else does.
    """

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        for node_id in (2, 3):
            member = await controllers.until(lambda node_id=node_id: controllers.members.get(node_id))
            await member.service.caught_up()
            await controllers.until(lambda: not leader.service.quorum.decisions.has_waiting_control)
            assert (await controllers.ask_quorum(leader.node_id, add(node_id))).error_code == 0
        await decide(controllers, 100, 100)
        await controllers.agree()
        await controllers.until(
            lambda: all(each.log.log_start_offset > 50 for each in controllers.members.values())
        )
        for node_id in (1, 2, 3, 9):
            controllers.crash(node_id, "synced")
        for node_id in (2, 3, 9):
            controllers.start(node_id)
        await controllers.until(lambda: len(controllers.members) == 3)
        for member in controllers.members.values():
            assert member.service.quorum.voters.node_ids == (1, 2, 3)
        assert (await controllers.ask(register(300), 60.0)).error_code == 0
        await controllers.agree()

    play(script, voters=(1,), observers=(2, 3, 9), more_controllers=(2, 3), snapshots=OFTEN)


@pytest.mark.parametrize("seed", seeds(6))
def test_crashes_in_bad_weather_lose_no_answer(seed: int) -> None:
    """Nodes crash in bad weather while snapshots are written, fetched and installed. Every answer remains valid."""
    world = World(seed, Weather.draw(World(seed)._stream("weather")))

    async def script(world: World, controllers: Controllers) -> None:
        told: list[int] = []
        for number in range(30):
            if number % 4 == 3:
                victim = world.random.choice(controllers.node_ids)
                machine = world.machine(host_of(victim))
                if machine.env is not None and machine.env.alive:
                    controllers.crash(victim, world.random.choice(["all", "synced", "random"]))
                    world.spawn(lambda victim=victim: restart(world, controllers, victim))
            if (await controllers.ask(register(100 + number), 120.0)).error_code == 0:
                told.append(100 + number)
        controllers.start_all()
        await controllers.until(lambda: len(controllers.members) == 3)
        await controllers.agree(60.0)
        assert len(told) > 15
        for member in controllers.members.values():
            assert set(told) <= set(member.service.committed_image.brokers)

    play(script, world, snapshots=SnapshotSettings(bytes_between_max=600))
