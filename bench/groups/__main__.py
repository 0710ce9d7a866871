"""Measures group coordination: a rebalance of 20 members, the cost of a heartbeat, and 1,000 groups after kill -9.

    python -m bench.groups [--json FILE] [--quick]

* **Rebalance.** 19 members are in a stable group; the 20th joins. Members are plain sockets that send a heartbeat
  every 100 ms, so they learn quickly of the rebalance. With the clients' default of 3 s, only this interval would be
  measured. The figure is the time from the new member's JoinGroup until all 20 have their assignments.
  `group.initial.rebalance.delay.ms` has no effect, because it applies only to empty groups.
* **Heartbeat.** CPU of the node per heartbeat of a group's members. First, many are pipelined over 16 connections.
  Then they are sent one at a time over one connection, so that every heartbeat wakes the node.
* **Restore.** A node with 1,000 groups of 10 members each, with assignments, is killed (kill -9). The first figure is
  the time from the start of the process until every group is described with all its members. The second figure is the
  part of this time in which the node reads `__consumer_offsets`.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.groups.members import (
    HEARTBEAT_VERSION,
    JOIN_VERSION,
    SYNC_VERSION,
    EagerMember,
    join_request,
    run_until_assigned,
    wait_for_coordinator,
)
from bench.groups.pipelines import pipelined_cpu
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_groups import DescribeGroupsRequest
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess
from testkit.raw_requests import RawConnection, connect, decoded, exchange, framed

MEMBERS = 20
RESTORED_GROUPS = 1_000
RESTORED_MEMBERS = 10
GROUPS_AT_ONCE = 100
SETTINGS = {"group.initial.rebalance.delay.ms": "200", "offsets.topic.num.partitions": "50"}


def measure_rebalance(bootstrap: str, runs: int) -> list[float]:
    """Return the seconds from the 20th member's JoinGroup until all 20 have their assignments, for each run."""
    found = []
    for run in range(runs):
        group = f"rebalance-{run}"
        members = [EagerMember(bootstrap, group) for _ in range(MEMBERS - 1)]
        for member in members:
            member.join()
        run_until_assigned(members)
        newcomer = EagerMember(bootstrap, group)
        began_at = time.perf_counter()
        newcomer.join()
        run_until_assigned([*members, newcomer])
        found.append(time.perf_counter() - began_at)
        for member in (*members, newcomer):
            member.wire.socket.close()
    return found


def measure_heartbeats(server: ServerProcess, connections: int, depth: int, seconds: float) -> float:
    """Return the node's CPU microseconds per heartbeat."""
    member = EagerMember(server.bootstrap, f"heartbeat-{connections}")
    member.join()
    run_until_assigned([member])
    request = HeartbeatRequest(member.group, member.generation, member.member_id)
    frames = framed(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, request) * depth
    wires = [connect(server.bootstrap) for _ in range(connections)]
    answer_bytes = len(heartbeat_answer(wires[0], frames[: len(frames) // depth])) * depth
    spent = pipelined_cpu(server, wires, frames, answer_bytes, depth, seconds)
    member.wire.socket.close()
    return spent


def heartbeat_answer(wire: socket.socket, frame: bytes) -> bytes:
    """Send a heartbeat and return its answer with its length. Raises `RuntimeError` for an error code."""
    wire.sendall(frame)
    stream = wire.makefile("rb")
    size = stream.read(4)
    body = stream.read(int.from_bytes(size))
    code = decoded(body, ApiKey.HEARTBEAT, HEARTBEAT_VERSION).error_code
    if code:
        raise RuntimeError(f"Heartbeat returned {ErrorCode(code).name}")
    return size + body


def fill_groups(bootstrap: str, groups: Sequence[str]) -> None:
    """Create stable groups of ten members each, hundreds at a time. Each connection is used for one member of every
    group.
    """
    wires = [RawConnection(bootstrap) for _ in range(RESTORED_MEMBERS)]
    for at in range(0, len(groups), GROUPS_AT_ONCE):
        names = groups[at : at + GROUPS_AT_ONCE]
        for wire in wires:
            for name in names:
                wire.send(join_request(name), JOIN_VERSION)
        joined = [[wire.receive(JoinGroupRequest, JOIN_VERSION) for _ in names] for wire in wires]
        for wire, answers in zip(wires, joined, strict=True):
            for name, answer in zip(names, answers, strict=True):
                if answer.error_code:
                    raise RuntimeError(f"JoinGroup for {name} returned {ErrorCode(answer.error_code).name}")
                given = [SyncGroupRequestAssignment(each.member_id, bytes(60)) for each in answer.members]
                wire.send(
                    SyncGroupRequest(name, answer.generation_id, answer.member_id, None, None, None, given),
                    SYNC_VERSION,
                )
        for wire in wires:
            for _ in names:
                answer = wire.receive(SyncGroupRequest, SYNC_VERSION)
                if answer.error_code:
                    raise RuntimeError(f"SyncGroup returned {ErrorCode(answer.error_code).name}")
    for wire in wires:
        wire.socket.close()


def wait_until_described(bootstrap: str, groups: Sequence[str]) -> None:
    """Wait until every group is stable with all its members. Raises `RuntimeError` if a group has lost a member."""
    request = DescribeGroupsRequest(list(groups))
    while True:
        answer = exchange(bootstrap, framed(ApiKey.DESCRIBE_GROUPS, 5, request), ApiKey.DESCRIBE_GROUPS, 5)
        codes = {each.error_code for each in answer.groups}
        if codes == {ErrorCode.NONE}:
            break
        if codes - {ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}:
            raise RuntimeError(f"DescribeGroups returned the error codes {sorted(codes)}")
        time.sleep(0.01)
    for each in answer.groups:
        if each.group_state != "Stable" or len(each.members) != RESTORED_MEMBERS:
            raise RuntimeError(
                f"{each.group_id} is {each.group_state} with {len(each.members)} members instead of {RESTORED_MEMBERS}"
            )


def measure_restore(properties: Path, server: ServerProcess, count: int) -> dict[str, float]:
    """Kill `server` by SIGKILL, restart it, and measure the seconds until the groups are served again."""
    groups = [f"group-{number}" for number in range(count)]
    fill_groups(server.bootstrap, groups)
    wait_until_described(server.bootstrap, groups)
    server.kill()
    began_at = time.perf_counter()
    again = launch_odradek(properties)
    try:
        ready_seconds = time.perf_counter() - began_at
        wait_until_described(again.bootstrap, groups)
        all_seconds = time.perf_counter() - began_at
        loads = re.findall(r"event=groups\.loaded .*load_ms=(\d+)", again.log_path.read_text())
        return {
            "groups": count,
            "members": RESTORED_MEMBERS,
            "process_ready_seconds": ready_seconds,
            "all_groups_served_seconds": all_seconds,
            "node_cpu_seconds": again.cpu_seconds(),
            "longest_load_ms": float(max(map(int, loads))),
        }
    finally:
        again.kill()


@contextmanager
def fresh_node() -> Iterator[tuple[Path, ServerProcess]]:
    with tempfile.TemporaryDirectory(prefix="odradek-groups-") as name:
        properties = prepare_odradek(Path(name), settings=SETTINGS)
        server = launch_odradek(properties)
        try:
            wait_for_coordinator(server.bootstrap)
            yield properties, server
        finally:
            server.kill()


def main() -> int:
    """Measure and print; the exit status is 1 if a figure misses its goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--quick", action="store_true", help="make fewer and shorter runs")
    options = parser.parse_args()
    runs, seconds = (1, 1.0) if options.quick else (5, 4.0)
    figures: dict[str, Any] = {}
    with fresh_node() as (properties, server):
        figures["rebalance_seconds"] = measure_rebalance(server.bootstrap, runs)
        figures["heartbeat_pipelined_us"] = measure_heartbeats(server, 16, 8, seconds)
        figures["heartbeat_alone_us"] = measure_heartbeats(server, 1, 1, seconds)
        figures["restore"] = measure_restore(properties, server, RESTORED_GROUPS)
    slowest = max(figures["rebalance_seconds"])
    restore = figures["restore"]
    rows = [
        ("rebalance of 20 members, slowest", f"{slowest:.2f} s", "< 1 s", slowest < 1),
        (
            "heartbeat, 16 connections x 8",
            f"{figures['heartbeat_pipelined_us']:.1f} us CPU",
            "<= 30 us",
            figures["heartbeat_pipelined_us"] <= 30,
        ),
        ("heartbeat, one at a time", f"{figures['heartbeat_alone_us']:.1f} us CPU", "", True),
        (
            "1,000 groups x 10 members after kill -9",
            f"{restore['all_groups_served_seconds']:.2f} s",
            "< 3 s",
            restore["all_groups_served_seconds"] < 3,
        ),
        ("... until the node serves at all", f"{restore['process_ready_seconds']:.2f} s", "", True),
        ("... CPU of the node, its start included", f"{restore['node_cpu_seconds']:.2f} s", "", True),
        ("... the longest load of a partition", f"{restore['longest_load_ms']:.0f} ms", "", True),
    ]
    for name, value, aim, good in rows:
        print(f"{name:42} {value:>16}  {aim}{'' if good else '  MISSED'}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(good for *_, good in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
