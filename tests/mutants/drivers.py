"""What seeds are run with: the quorum alone, partitions alone, one node, whole clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sim import raft_alone, replication_alone
from tests.mutants.mutant import Driver


def _verdict_of(run: Callable[[int], object]) -> Driver:
    def driver(seed: int) -> str:
        try:
            run(seed)
        except Exception as error:  # noqa: BLE001 - however it fails, it has been found
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        return ""

    return driver


DRIVERS: Mapping[str, Driver] = {
    "raft": _verdict_of(raft_alone.run),
    "replication": _verdict_of(replication_alone.run),
}
