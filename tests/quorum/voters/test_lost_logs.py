"""A controller whose metadata log is lost does not start, since its votes and acknowledged records may be lost with
the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from odradek.data_plane.metadata_log import BEGUN_FILE, MetadataLog
from odradek.env.ports import Dir
from odradek.metadata_quorum.ports import MetadataLogCorrupt
from odradek.metadata_quorum.replica.quorum_state import FILE_NAME as QUORUM_STATE_FILE
from sim.machine.world import World
from testkit.by_hand import KeptLog
from tests.quorum.voters.controllers import Controllers, calm_world, host_of, register
from tests.quorum.voters.node_parts import PATH

LOG = "__cluster_metadata-0"
Script = Callable[[World, Controllers], Awaitable[None]]


def play(script: Script, **options: Any) -> None:
    """Run a script with three voters that have committed something."""
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
    return MetadataLog.open(root_of(world, node_id), clock=env.clock, logger=KeptLog(), may_vote=may_vote)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("lost", ["directory", "contents", "log", QUORUM_STATE_FILE])
def test_a_metadata_log_that_is_gone_is_missed(static: bool, clean: bool, lost: str) -> None:
    """A voter's log is gone, but its directory id is as before.

    The voter refuses to start, since it might vote twice in an epoch.
    """

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.stop(3) if clean else controllers.crash(3)
        root = root_of(world, 3)
        log = root.subdir(LOG)
        for name in log.list():
            if lost in ("contents", name) or (lost == "log" and name.endswith(".log")):
                log.remove(name)
        if lost == "directory":
            root.remove_tree(LOG)
        with pytest.raises(MetadataLogCorrupt) as refusal:
            open_log(world, 3)
        said = str(refusal.value)
        assert "\n" not in said
        assert f"{PATH}/{LOG}" in said
        assert ("has synced" if lost == "log" else f"remove {PATH}/{BEGUN_FILE}") in said
        # Follow the documentation. The voter comes back with all committed records.
        root.remove_tree(LOG)
        root.remove(BEGUN_FILE)
        controllers.start(3)
        await controllers.until(lambda: len(controllers.members) == 3)
        await controllers.agree()
        assert 100 in controllers.members[3].service.committed_image.brokers

    play(script, static=static)


@pytest.mark.long
@pytest.mark.parametrize(("static", "keep"), [(False, "synced"), (True, "all")])
def test_a_crash_at_any_moment_of_the_first_start_is_no_loss(static: bool, keep: str) -> None:
    """Nodes crash during their first start.

    The proof that a log existed is written after the log, so this is not taken for a lost log.
    """
    for moment in range(16):
        world = calm_world(moment + 1)
        controllers = Controllers(world, static=static)

        async def main(
            world: World = world, controllers: Controllers = controllers, moment: int = moment
        ) -> None:
            controllers.start_all()
            await world.sleep(0.1 * moment)
            for node_id in (1, 2, 3):
                controllers.crash(node_id, keep)
                open_log(world, node_id).close()
                controllers.start(node_id)
            assert (await controllers.ask(register(100))).error_code == 0
            await controllers.agree()

        world.run(main)


def test_a_broker_without_its_metadata_log_fetches_it_again() -> None:
    """An observer's log is gone. It fetches the log again, since it has no vote."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.until(lambda: root_of(world, 4).exists(BEGUN_FILE))
        controllers.crash(4)
        root_of(world, 4).remove_tree(LOG)
        controllers.start(4)
        await controllers.until(lambda: 4 in controllers.members)
        await controllers.agree()

    play(script, observers=(4,))
