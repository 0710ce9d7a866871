"""An operator that empties log directories of brokers, as `odradek disk retire` does, and then returns them to use.
PORTED.

A directory is cordoned. Then the moves of `plan_disk_retirement` are requested again and again, until the broker
reports the directory as empty. If the broker does so while the cordon is in force, no live log may be on the disk. At
the end, without faults, a retirement must finish.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from odradek.client.admin import AlterConfig, ConfigOperation, ConfigResource, ResourceType
from odradek.client.admin.admin_configs import incremental_alter_configs
from odradek.client.admin.admin_logs import LogDirDescription, alter_replica_log_dirs, describe_log_dirs
from odradek.client.admin.moves.disk_plans import disks_of, plan_disk_retirement
from odradek.client.admin.moves.placement import CannotPlan
from odradek.client.core.operation import Operation
from odradek.client.core.scatter import CallError
from odradek.data_plane.log.directory.log_dir import METADATA_TOPIC, parse_partition_name
from odradek.metadata_quorum.features import THIS_RELEASE
from sim.history import SafetyViolation
from sim.load.operators.duty import CALL_SECONDS, LOOK_AGAIN_SECONDS, Duty
from sim.machine.members import Member

__all__ = ["Retirements"]

CORDONED = "cordoned.log.dirs"
LOOKS_MAX = 20


class Retirements(Duty):
    """An operator that retires one directory after another. It does nothing if brokers have only one directory."""

    calm_seconds_max = 6.0

    async def step(self) -> None:
        member = self.random.choice(self.cluster.brokers)
        paths = member.config.log_dirs
        path = self.random.choice(paths)
        if not self._can_retire(member) or path == member.config.metadata_log_dir:
            return
        try:
            await self._cordon(member, path)
            for _ in range(LOOKS_MAX):
                if self.is_over or await self._look(member, path) is None:
                    break
                await self.world.sleep(LOOK_AGAIN_SECONDS)
        finally:
            await self._cordon(member, None)

    async def check(self) -> None:
        """Check that a retirement finishes, and then remove the cordon. Raises `SafetyViolation`."""
        for member in self.cluster.brokers:
            paths = [path for path in member.config.log_dirs if path != member.config.metadata_log_dir]
            if self._can_retire(member):
                path = self.random.choice(paths)
                await self.must_hold(partial(self._cordon, member, path))
                await self.must_hold(partial(self._look, member, path))
                await self.must_hold(partial(self._cordon, member, None))
                return

    def _can_retire(self, member: Member) -> bool:
        """True if the broker has another directory, and its release reports cordoned directories (DescribeLogDirs 5)."""
        return len(member.config.log_dirs) > 1 and member.speaks is THIS_RELEASE

    async def _cordon(self, member: Member, path: str | None) -> None:
        ((_, error),) = await self.client.run(self._setting(member, path))
        if error is not None:
            raise error

    def _setting(
        self, member: Member, path: str | None
    ) -> Operation[list[tuple[ConfigResource, CallError | None]]]:
        change = (
            AlterConfig(CORDONED, operation=ConfigOperation.DELETE)
            if path is None
            else AlterConfig(CORDONED, path)
        )
        resource = ConfigResource(ResourceType.BROKER, str(member.config.node_id))
        return incremental_alter_configs(self.client.core, {resource: [change]}, timeout=CALL_SECONDS)

    async def _look(self, member: Member, path: str) -> str | None:
        """Request the moves that are left, and describe the reason why the retirement is not finished. Return None
        once the directory is empty. Raises `SafetyViolation` if a log is left on the disk.
        """
        broker = member.config.node_id
        asking = describe_log_dirs(self.client.core, [broker], timeout=CALL_SECONDS)
        (told,) = await self.client.run(asking)
        if told.error is not None:
            raise told.error
        where = f"{path} of broker {broker}"
        found = {each.path: each for each in told.directories}
        if any(each.error is not None for each in found.values()) or len(found) < len(member.config.log_dirs):
            return f"a directory beside {where} is offline"
        if not found[path].is_cordoned:
            return f"{where} is not cordoned yet"
        try:
            moves = plan_disk_retirement(disks_of(told.directories, [path]), path)
        except CannotPlan as error:
            return f"{where}: {error}"
        if moves:
            wanted = {(move.topic, move.partition, broker): move.target for move in moves}
            asking_for = alter_replica_log_dirs(self.client.core, wanted, timeout=CALL_SECONDS)
            for refused in (await self.client.run(asking_for)).values():
                if refused is not None:
                    raise refused
        left = self._left(told.directories, path)
        if left:
            return f"{where} holds still {left}"
        await self._must_be_empty(member, path)
        return None

    def _left(self, directories: Sequence[LogDirDescription], path: str) -> list[str]:
        return [
            f"{each.topic}-{each.partition}"
            for directory in directories
            for each in directory.replicas
            if each.is_future or directory.path == path
        ]

    async def _must_be_empty(self, member: Member, path: str) -> None:
        """Check that a directory which its broker reports as empty has no live log on the disk. Such a log would be
        lost with the disk.

        A late request may have removed the cordon since the answer. So a log counts only if a second answer of the
        broker omits it, too, and the log is still on the disk.
        """
        live = self._live_logs(member, path)
        if not live:
            return
        asking = describe_log_dirs(self.client.core, [member.config.node_id], timeout=CALL_SECONDS)
        (told,) = await self.client.run(asking)
        found = {each.path: each for each in told.directories}
        if told.error is not None or path not in found or found[path].error is not None:
            return
        left = self._left(told.directories, path)
        forgotten = [name for name in self._live_logs(member, path) if name in live and name not in left]
        if forgotten:
            raise SafetyViolation(f"{path} of {member.name} is reported as empty, but has {forgotten}")

    def _live_logs(self, member: Member, path: str) -> list[str]:
        """List the partition logs in a directory of a living process."""
        if not member.is_up():
            return []
        names = self.world.machine(member.name).disk.open_dir(path).list()
        return [name for name in names if (key := parse_partition_name(name)) and key.topic != METADATA_TOPIC]
