"""Events that hit a leader on real nodes: the rows of the table."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator

from confluent_kafka import ElectionType, TopicPartition

from bench.failover.bench import Bench, Done, Row
from bench.failover.subjects import offsets_shard, one_partition, thousand_partitions, transactions_shard
from odradek import Admin

__all__ = ["ROWS"]

BACK_SECONDS = 0.2
"""A supervisor such as systemd starts a dead process again after this time (`RestartSec`)."""
LOOK_SECONDS = 0.05


def _at_once() -> bool:
    return True


def _kill(bench: Bench, leader: int) -> Done:
    bench.cluster.kill(leader)
    return _at_once


def _restart(bench: Bench, leader: int) -> Done:
    bench.cluster.kill(leader)
    time.sleep(BACK_SECONDS)
    bench.cluster.start(leader)
    return _at_once


def _pause(bench: Bench, leader: int) -> Done:
    bench.cluster.pause(leader)
    return _at_once


def _cut(*, hears: bool, is_heard: bool) -> Callable[[Bench, int], Done]:
    """Make an event that drops the packets between the leader's node and the others, in one direction or in both."""

    def event(bench: Bench, leader: int) -> Done:
        network = bench.cluster.network
        for other in bench.cluster.nodes:
            if other != leader:
                if not is_heard:
                    network.block(leader, other)
                if not hears:
                    network.block(other, leader)
        return _at_once

    return event


def _terminate(bench: Bench, leader: int) -> subprocess.Popen[bytes]:
    process = bench.cluster.nodes[leader].process
    assert process is not None
    process.terminate()
    return process


def _stop(bench: Bench, leader: int) -> Done:
    process = _terminate(bench, leader)
    return lambda: process.poll() is not None


def _step_through(steps: Iterator[None]) -> Done:
    """Return a function that takes the next step at each call, and is true after the last one."""
    return lambda: next(steps, steps) is steps


def _roll(bench: Bench, leader: int) -> Done:
    """Stop each node in order and start it again; go on to the next one when all replicas are in sync."""

    def steps() -> Iterator[None]:
        for number in (leader, *(each for each in bench.cluster.nodes if each != leader)):
            process = _terminate(bench, number)
            while process.poll() is None:
                yield
            bench.cluster.start(number)
            while not bench.cluster.serves(number) or not bench.is_in_sync(bench.place):
                time.sleep(LOOK_SECONDS)
                yield

    return _step_through(steps())


def _prefer_another(bench: Bench) -> None:
    """Let another replica become the preferred leader. The leader stays as it is."""
    replicas = bench.replicas(bench.place)
    turned = [*replicas[1:], replicas[0]]
    _reassign(bench, turned)
    while bench.replicas(bench.place) != turned:
        time.sleep(LOOK_SECONDS)


def _reassign(bench: Bench, replicas: list[int]) -> None:
    with Admin(bootstrap_servers=bench.cluster.bootstrap) as ours:
        (error,) = ours.alter_partition_reassignments({bench.place: replicas}).values()
    if error is not None:
        raise error


def _elect(bench: Bench, _: int) -> Done:
    chosen = bench.admin().elect_leaders(ElectionType.PREFERRED, [TopicPartition(*bench.place)])
    return lambda: chosen.done()


def _drain(bench: Bench, leader: int) -> Done:
    """Move the replica of the leader to the node that has none."""
    replicas = bench.replicas(bench.place)
    (free,) = set(bench.cluster.nodes) - set(replicas)
    wanted = [free if each == leader else each for each in replicas]
    _reassign(bench, wanted)
    return lambda: bench.replicas(bench.place) == wanted and bench.is_in_sync(bench.place)


def _change_disk(bench: Bench, leader: int) -> Done:
    """Move the leader's replica to the other disk of its node."""
    topic, partition = bench.place

    def directories() -> dict[str, bool]:
        """Return which directory of the leader has the replica, and whether it is whole there."""
        (broker,) = ours.describe_log_dirs([leader])
        return {
            directory.path: not each.is_future
            for directory in broker.directories
            for each in directory.replicas
            if (each.topic, each.partition) == bench.place
        }

    with Admin(bootstrap_servers=bench.cluster.bootstrap) as ours:
        (broker,) = ours.describe_log_dirs([leader])
        before = directories()
        (wanted,) = {each.path for each in broker.directories} - set(before)
        error = ours.alter_replica_log_dirs({(topic, partition, leader): wanted})[topic, partition, leader]
        if error is not None:
            raise error
        while directories() != {wanted: True}:
            time.sleep(LOOK_SECONDS)
    return _at_once


_OTHER, _ACTIVE, _TWICE = one_partition(), one_partition(leads="controller"), one_partition(replicas=2)
_DEAD = _cut(hears=False, is_heard=False)
ROWS = (
    Row("killed", "kill -9 of the leader", 1.0, _kill, _OTHER),
    Row("controller", "kill -9 of the leader that is the active controller", 1.0, _kill, _ACTIVE),
    Row("restarted", f"kill -9 of the leader, started again after {BACK_SECONDS * 1000:.0f} ms", 1.0, _restart, _OTHER, answers=True),
    Row("offsets", "kill -9 of the coordinator of 10,000 committed offsets", 0.5, _kill, offsets_shard),
    Row("ids", "kill -9 of the coordinator of 10,000 transactional ids", 0.5, _kill, transactions_shard),
    Row("host", "the leader's host dies", 3.5, _DEAD, _OTHER, needs_links=True),
    Row("host-controller", "the host of leader and active controller dies", 6.0, _DEAD, _ACTIVE, needs_links=True),
    Row("stopped", "the leader's process hangs (SIGSTOP)", 3.5, _pause, _OTHER),
    Row("mute", "the leader hears the others, and they do not hear it", 3.5, _cut(hears=True, is_heard=False), _OTHER, needs_links=True),
    Row("deaf", "the others hear the leader, and it does not hear them", 9.5, _cut(hears=False, is_heard=True), _OTHER, needs_links=True),
    Row("ended", "the leader's node stops in order (SIGTERM)", 0.05, _stop, _OTHER, answers=True),
    Row("rolled", "each node stops in order and comes back", 0.05, _roll, _OTHER, answers=True),
    Row("moved", "the preferred leader is elected", 0.05, _elect, _OTHER, answers=True, prepare=_prefer_another),
    Row("drained", "the leader's replica moves to another node", 0.05, _drain, _TWICE, answers=True),
    Row("disk", "the leader's replica moves to another disk of its node", 0.05, _change_disk, _OTHER, answers=True),
    Row("killed-1000", "kill -9 of the leader of 1,000 partitions, all of them", 2.0, _kill, thousand_partitions),
)  # fmt: skip
"""The rows in their order. The last one leaves 3,000 partitions behind, which would change the others' figures."""
