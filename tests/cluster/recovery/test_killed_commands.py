"""Recovery commands on the directories of real nodes are killed before every possible write and then repeated.

After a kill, each node has its old directory, the new one, or one with which it refuses to start. The repeated command,
with the plan if it was already written, completes the recovery: all nodes have the same new log.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import pytest

from odradek.env.real import RealEnv
from odradek.metadata_quorum.recovery.recovery_files import decode_plan
from odradek.metadata_quorum.replica.checkpoint_files import snapshot_name
from odradek.metadata_quorum.replica.meta_properties import read_meta_properties
from odradek.metadata_quorum.replica.quorum_state import FileQuorumStateStore
from odradek.metadata_quorum.replica.storage_format import DRAFT_DIRECTORY, METADATA_LOG_DIRECTORY
from tests.cluster.recovery.killed_commands import Killer, killing
from tests.cluster.recovery.stopped_cluster import Cluster
from tests.cluster.test_real_nodes import create, in_sync, produce, until, values

pytestmark = pytest.mark.xdist_group("cluster")

ASIDE = "the old log, set aside"
Files = Mapping[str, bytes]


@attrs.frozen
class Stopped:
    """Stopped nodes whose metadata directories are restored before each attempt."""

    cluster: Cluster
    killer: Killer
    backup: Path
    """An archive of an earlier metadata log."""

    def put_back(self, *destroyed: int) -> None:
        """Restore all metadata directories as the nodes left them, except those of the nodes in `destroyed`."""
        for node_id in self.cluster.ids:
            shutil.rmtree(self.cluster.metadata(node_id), ignore_errors=True)
            if node_id not in destroyed:
                self.cluster.copy_back("kept", node_id)
        for path in self.plans():
            path.unlink()

    def plans(self) -> list[Path]:
        return sorted(self.cluster.directory.glob("*.recovery-*"))

    def files(self, node_id: int) -> Files:
        """Return the contents of a node's metadata directory."""
        root = self.cluster.metadata(node_id)
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.name != ".lock"
        }

    def go_on(self, words: Sequence[str | Path]) -> None:
        """Continue as the recovery page says: repeat the command, with the plan if there is one."""
        plans = [path for path in self.plans() if path.suffix == ".json"]
        if plans:
            words = ("quorum", "recover", "--from", plans[-1], *self.cluster.configs, "--execute", "--json")
        done = self.killer.run(*words)
        assert done.code == 0, done.out + done.err

    def check_whole(self, before: Mapping[int, Files]) -> None:
        """Check that all nodes have the same new log, and that each old log is kept aside."""
        (path,) = (each for each in self.plans() if each.suffix == ".json")
        plan = decode_plan(path.read_bytes())
        assert plan.voters is not None
        name = snapshot_name(plan.end.offset, plan.end.epoch)
        for node_id in self.cluster.ids:
            root = RealEnv().open_dir(str(self.cluster.metadata(node_id)))
            log = root.subdir(METADATA_LOG_DIRECTORY)
            assert sorted(log.list()) == sorted([name, "quorum-state"])
            assert log.read_bytes(name) == plan.snapshot
            state = FileQuorumStateStore(log).load()
            assert state is not None
            assert state.leader_epoch == plan.end.epoch
            meta = read_meta_properties(root)
            voter = plan.voters.get(node_id)
            assert voter is not None
            assert meta is not None
            assert voter.key.directory_id == meta.directory_id
            assert not root.is_dir(DRAFT_DIRECTORY)
            old = f"{METADATA_LOG_DIRECTORY}/"
            aside = f"{METADATA_LOG_DIRECTORY}.{plan.end.epoch}-stray/"
            kept = {
                key.replace(aside, old): data for key, data in self.files(node_id).items() if aside in key
            }
            assert kept == {key: data for key, data in before[node_id].items() if key.startswith(old)}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    """Let three nodes write records and a backup, and stop them."""
    directory = tmp_path_factory.mktemp("killed")
    cluster = Cluster.make(directory)
    with cluster.ended(), killing(directory) as killer:
        cluster.start(1, 2, 3)
        create(cluster.bootstrap, "t", 3)
        produce(cluster.bootstrap, "t", range(20))
        cluster.stop(1, 2, 3)
        killer.load("quorum", "recover", *cluster.configs)
        cluster.copy_metadata("kept", 1, 2, 3)
        archive = directory / "backup.tar.gz"
        with tarfile.open(archive, "w:gz") as backup:
            backup.add(cluster.metadata(1), ".")
        yield Stopped(cluster, killer, archive)


def recover(stopped: Stopped) -> tuple[str | Path, ...]:
    lost = [f"--lost={stopped.cluster.key(each)}" for each in (1, 2)]
    return ("quorum", "recover", *stopped.cluster.configs, *lost, "--execute", "--json")


def restore(stopped: Stopped) -> tuple[str | Path, ...]:
    lost = [f"--lost={stopped.cluster.key(each)}" for each in (1, 2, 3)]
    backup = ("--backup", stopped.backup)
    return ("quorum", "recover", *stopped.cluster.configs, *lost, *backup, "--execute", "--json")


def rebuild(stopped: Stopped) -> tuple[str | Path, ...]:
    return ("metadata", "rebuild", *stopped.cluster.configs, "--execute", "--json")


def _kind(name: str) -> str:
    return ASIDE if name.endswith("-stray") else name


@pytest.mark.long
@pytest.mark.parametrize(
    ("words_of", "destroyed"), [(recover, (1, 2)), (restore, (1, 2, 3)), (rebuild, (1, 2, 3))]
)
def test_a_command_that_is_killed_between_any_two_writes_is_repeated(
    stopped: Stopped,
    words_of: Callable[[Stopped], tuple[str | Path, ...]],
    destroyed: tuple[int, ...],
    whole_matrix: bool,
) -> None:
    """After a kill, no half-recovered node starts, and the repeated command completes the recovery."""
    cluster, killer = stopped.cluster, stopped.killer
    words = words_of(stopped)
    stopped.put_back(*destroyed)
    before = {node_id: stopped.files(node_id) for node_id in cluster.ids}
    calls = killer.moments(*words)
    stopped.check_whole(before)
    moments = [at for at, name in enumerate(calls, 1) if whole_matrix or name in ("mkdir", "rename")]
    assert len(moments) > 12
    refused: set[tuple[str, ...]] = set()
    for moment in moments if whole_matrix else moments[-12:]:
        stopped.put_back(*destroyed)
        killer.kill(moment, *words)
        for node_id in cluster.ids:
            files = stopped.files(node_id)
            names = tuple(sorted({_kind(key.split("/")[0]) for key in files}))
            is_new = ASIDE in names or not before[node_id]
            is_done = METADATA_LOG_DIRECTORY in names and is_new and DRAFT_DIRECTORY not in names
            if not files or files == before[node_id] or is_done or names in refused:
                continue
            start = killer.run("server", cluster.properties(node_id))
            assert start.code in (1, 78), (moment, names)
            assert start.err.splitlines()[-1].startswith(f"odradek: node {node_id} stops: "), start.err
            refused.add(names)
        stopped.go_on(words)
        stopped.check_whole(before)
    assert any(METADATA_LOG_DIRECTORY not in names for names in refused), refused


@pytest.mark.long
def test_the_nodes_start_after_a_command_that_was_killed_between_its_last_renames(stopped: Stopped) -> None:
    """Killed between the last two renames, a node has no metadata log. Its start names the command that completes the
    recovery."""
    cluster, killer = stopped.cluster, stopped.killer
    words = recover(stopped)
    stopped.put_back(1, 2)
    for moment in range(len(killer.moments(*words)), 0, -1):
        stopped.put_back(1, 2)
        killer.kill(moment, *words)
        if not (cluster.metadata(3) / METADATA_LOG_DIRECTORY).exists():
            break
    refusal = killer.run("server", cluster.properties(3))
    assert refusal.code == 78
    assert "odradek quorum recover --from PLAN CONFIG --execute" in refusal.err
    shown = killer.run("quorum", "recover", *cluster.configs)
    assert "node 3 has a recovery that was broken off" in shown.out
    stopped.go_on(words)
    cluster.start(1, 2, 3)
    until("all in sync", lambda: in_sync(cluster.bootstrap, "t", 3))
    assert values(cluster.bootstrap, "t") == list(range(20))
