"""A voter that has lost what it promised: the log alone (refused), or its whole disk (it votes only when it has it again)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from data_plane.metadata_log import MetadataLog
from metadata_quorum.log_promise import FILE_NAME, LogPromise
from metadata_quorum.ports import MetadataLogCorrupt
from odradek.env.ports import Dir
from sim.world import World
from tests.quorum.controllers import Controllers, calm_world, host_of, register
from tests.quorum.node_parts import PATH, Journal

LOG = "__cluster_metadata-0"
Script = Callable[[World, Controllers], Awaitable[None]]


def play(script: Script, **options: Any) -> None:
    """Three voters that have committed something."""
    world = calm_world()
    controllers = Controllers(world, **options)

    async def main() -> None:
        controllers.start_all()
        assert (await controllers.ask(register(100))).error_code == 0
        await controllers.agree()
        await script(world, controllers)

    world.run(main)


def root_of(world: World, node_id: int) -> Dir:
    return world.machine(host_of(node_id)).disk.open_dir(PATH)


def open_log(world: World, node_id: int, *, may_vote: bool = True) -> MetadataLog:
    env = world.node_env(host_of(node_id))
    return MetadataLog.open(root_of(world, node_id), clock=env.clock, logger=Journal(), may_vote=may_vote)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("lost", ["everything", "log", "quorum-state"])
def test_a_metadata_log_that_is_gone_is_missed(static: bool, clean: bool, lost: str) -> None:
    """The directory, its id and name are as before: without a word it would vote again, in epochs in which it has voted."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.stop(3) if clean else controllers.crash(3)
        root = root_of(world, 3)
        if lost == "everything":
            root.remove_tree(LOG)
        else:
            log = root.subdir(LOG)
            for name in log.list():
                if name == lost or (lost == "log" and name != "quorum-state"):
                    log.remove(name)
        with pytest.raises(MetadataLogCorrupt, match="may have voted and promised") as refusal:
            open_log(world, 3)
        assert "\n" not in str(refusal.value)
        assert f"{PATH}/{FILE_NAME}" in str(refusal.value)
        # What the line says, done: it comes back with all that is committed.
        root.remove_tree(LOG)
        root.remove(FILE_NAME)
        controllers.start(3)
        await controllers.until(lambda: len(controllers.members) == 3)
        await controllers.agree()
        assert 100 in controllers.members[3].service.committed_image.brokers
        assert not controllers.members[3].service.quorum.is_blank

    play(script, static=static)


def test_a_broker_without_its_metadata_log_fetches_it_again() -> None:
    """An observer has promised nothing to anybody."""

    async def script(world: World, controllers: Controllers) -> None:
        controllers.crash(4)
        root_of(world, 4).remove_tree(LOG)
        log = open_log(world, 4, may_vote=False)
        assert log.log_end_offset == 0
        assert log.promise.is_blank

    play(script, observers=(4,))


def test_a_promise_that_cannot_be_read() -> None:
    """One line with the file's name."""
    world = calm_world()
    root = world.machine("c1").disk.open_dir(PATH, create=True)
    root.write_atomic(FILE_NAME, b"version=1\nblank=perhaps\nend.offset=1\n")
    with pytest.raises(MetadataLogCorrupt, match=FILE_NAME):
        LogPromise(root)


@pytest.mark.parametrize("static", [False, True])
def test_a_wiped_voter_elects_nobody_who_lacks_what_it_had_promised(static: bool) -> None:
    """Nodes 1 and 2 have committed without 3; one is down, the other wiped and formatted anew under its old name."""

    async def script(world: World, controllers: Controllers) -> None:
        leader = (await controllers.leader()).node_id
        wiped, lagging = (each for each in (1, 2, 3) if each != leader)
        controllers.crash(lagging)
        assert (await controllers.ask(register(101))).error_code == 0
        controllers.crash(leader)
        controllers.crash(wiped)
        world.machine(host_of(wiped)).disk.open_dir("/").remove_tree(PATH.strip("/"))
        controllers.format(wiped)
        controllers.start(wiped)
        controllers.start(lagging)
        await world.sleep(20.0)
        assert controllers.active() is None
        controllers.start(leader)
        await controllers.until(lambda: len(controllers.members) == 3)
        await controllers.agree()
        assert 101 in controllers.members[lagging].service.committed_image.brokers
        # It has fetched all, so it counts again.
        await controllers.until(lambda: not controllers.members[wiped].service.quorum.is_blank)
        controllers.crash(leader)
        assert (await controllers.ask(register(102), 60.0)).error_code == 0
        assert not LogPromise(root_of(world, wiped)).is_blank

    play(script, static=static)


def test_a_new_cluster_waits_for_all_its_voters() -> None:
    """Two of three that hold nothing cannot tell whether the third does; with the third they elect at once."""
    world = calm_world()
    controllers = Controllers(world, static=True)

    async def main() -> None:
        controllers.start(1)
        controllers.start(2)
        await world.sleep(10.0)
        assert controllers.active() is None
        controllers.start(3)
        assert (await controllers.ask(register(100), 5.0)).error_code == 0
        controllers.crash(3)
        assert (await controllers.ask(register(101))).error_code == 0

    world.run(main)
