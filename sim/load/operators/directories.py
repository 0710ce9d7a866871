"""An operator that moves replicas between the log directories of a broker. PORTED.

At the end every move has finished, and each replica is in exactly one directory: the target of the last acknowledged
move. Only the number of directories is checked if the run also replaces disks or moves replicas between brokers.
"""

from __future__ import annotations

from odradek.client.admin.admin_logs import alter_replica_log_dirs, describe_log_dirs
from sim.load.operators.duty import CALL_SECONDS, Duty, Possible, Site

__all__ = ["Directories"]

_Replica = tuple[str, int, int]
"""(topic, partition, broker id)."""


class Directories(Duty):
    """An operator that moves the workload's replicas. It does nothing if brokers have only one directory."""

    replicas_stay = True
    """True if no other part of the run moves replicas."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._paths: dict[_Replica, Possible[str | None]] = {}

    async def step(self) -> None:
        member = self.random.choice(self.cluster.brokers)
        paths = member.config.log_dirs
        topic, partition = self.random.choice(self.load.partitions)
        path = self.random.choice(paths)
        replica = (topic, partition, member.config.node_id)
        if len(paths) == 1:
            return
        possible = self._paths.setdefault(replica, Possible(None))
        moving = alter_replica_log_dirs(self.client.core, {replica: path}, timeout=CALL_SECONDS)
        error: Exception | None = None
        try:
            error = (await self.client.run(moving))[replica]
        except Exception as raised:
            error = raised
            raise
        finally:
            if error is None:
                possible.acknowledge(path)
            else:
                possible.ask(path)
        if error is not None:
            raise error

    async def check(self) -> None:
        await self.must_hold(self._wrong)

    async def _wrong(self) -> str | None:
        found: dict[_Replica, list[str]] = {}
        brokers = [member.config.node_id for member in self.cluster.brokers]
        for told in await self.client.run(describe_log_dirs(self.client.core, brokers, timeout=CALL_SECONDS)):
            if told.error is not None:
                raise told.error
            for directory in told.directories:
                for each in directory.replicas:
                    where = f"{each.topic}-{each.partition} of broker {told.broker}"
                    if each.is_future:
                        return f"{where} moves still to {directory.path}"
                    found.setdefault((each.topic, each.partition, told.broker), []).append(directory.path)
        for replica, paths in found.items():
            if len(paths) > 1:
                return f"{replica} is in {paths}"
            possible = self._paths.get(replica)
            if possible is None or possible.allows(None) or not self.replicas_stay:
                continue
            if not possible.allows(paths[0]):
                return f"{replica} is in {paths[0]}, asked for was {possible}"
        return None
