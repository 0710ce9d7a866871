"""One run: start a cluster and clients, inject faults, heal everything, read all records, and check the history."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from jepsen_tests.checkers import Anomaly, check, excused_duplicates
from jepsen_tests.history import Commit, History
from jepsen_tests.nemesis import Nemesis
from jepsen_tests.network import Network
from jepsen_tests.real_cluster import FASTER, Cluster, ClusterFailed
from jepsen_tests.schedule import INTERVAL_SECONDS, PlannedFault, plan, plan_kills
from jepsen_tests.systems import System
from jepsen_tests.workload import TOPIC, Recorder, Workload

_ADMIN_SECONDS = 60.0
_CALM_SECONDS = 2.0
_HEAL_SECONDS = 60.0
_ANSWER_SECONDS = 60.0
_GROUP_SECONDS = 60.0
_CLOSE_SECONDS = 30.0
_READ_SECONDS = 60.0


@attrs.frozen
class Options:
    """The options of a run: its length, faults and clients."""

    seconds: float = 60.0
    kinds: Sequence[str] = ()
    seed: int = 0
    interval: float = INTERVAL_SECONDS
    targets: Sequence[str] = ()
    kills: int = 0
    """If above 0, the run consists of this number of kills, each of one node, and ignores `seconds` and `kinds`. In
    such a run no client is replaced, and errors that an application sees count as troubles.
    """
    controllers: int = 0
    """The number of separate controllers; 0 means that the three brokers are also the controllers."""
    default_timeouts: bool = False
    """True to keep the default timeouts of sessions and replica lag."""
    rate: float = 400.0
    acks: str = "all"
    value_bytes: int = 100
    partitions: int = 6
    producers: int = 2
    readers: int = 1
    members: int = 3
    settings: Mapping[str, str] = attrs.field(factory=dict)


@attrs.define
class Result:
    """The result of a run. `troubles` are sentences about what did not work after all faults had ended."""

    history: History
    anomalies: list[Anomaly]
    troubles: list[str]
    errors: Mapping[str, int]
    faults: Mapping[str, int]
    figures: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """`safety` if there is an anomaly, `liveness` if the cluster has not healed, otherwise `ok`."""
        if self.anomalies:
            return "safety"
        return "liveness" if self.troubles else "ok"


def run(
    system: System, network: Network, directory: Path, options: Options, say: Callable[[str], None]
) -> Result:
    """Run the test. Raises `ClusterFailed` if the nodes fail to start, `systems.Unavailable` if the system is not
    installed, and `ValueError` for unknown faults.
    """
    if options.kills:
        faults = plan_kills(options.seed, options.kills, options.interval)
        options = attrs.evolve(options, seconds=faults[-1].end + 2 * _CALM_SECONDS)
    else:
        fault_seconds = options.seconds - 2 * _CALM_SECONDS
        faults = plan(options.seed, fault_seconds, options.kinds, options.interval, options.targets)
    settings = {**({} if options.default_timeouts else FASTER), **options.settings}
    cluster = Cluster(system, network, directory, settings, controllers=options.controllers)
    try:
        cluster.prepare()
        cluster.start_all()
        say(f"{system.name}: {len(cluster.nodes)} nodes serve at {cluster.bootstrap}")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        topic = NewTopic(TOPIC, options.partitions, 3)
        admin.create_topics([topic], operation_timeout=_ADMIN_SECONDS)[TOPIC].result(_ADMIN_SECONDS)
        return _drive(cluster, admin, options, faults, say)
    finally:
        cluster.close()


def _drive(
    cluster: Cluster,
    admin: AdminClient,
    options: Options,
    faults: Sequence[PlannedFault],
    say: Callable[[str], None],
) -> Result:
    recorder = Recorder()
    workload = Workload(
        cluster.bootstrap,
        options.partitions,
        recorder,
        options.rate,
        options.value_bytes,
        options.seed,
        options.acks,
        steady=options.kills > 0,
    )

    def tell(name: str, detail: str) -> None:
        recorder.fault(name, detail)
        say(f"{recorder.now():7.2f} s  {name}  {detail}")

    workload.start(options.producers, options.readers, options.members)
    nemesis = Nemesis(cluster, lambda: busiest_leader(admin), tell)
    time.sleep(_CALM_SECONDS)
    nemesis.run(faults, time.monotonic())
    tell("healed", "")
    troubles: list[str] = []
    try:
        healing = cluster.wait_until_whole(_HEAL_SECONDS)
    except ClusterFailed as failure:
        troubles.append(str(failure))
        healing = _HEAL_SECONDS
    time.sleep(max(_CALM_SECONDS, recorder.started + options.seconds - time.monotonic()))
    if not workload.stop_producing(_ANSWER_SECONDS):
        troubles.append(f"not every send was answered {_ANSWER_SECONDS:.0f} s after the last fault")
    answered = time.monotonic()
    if options.members and options.acks == "all" and (behind := workload.wait_for_group(_GROUP_SECONDS)):
        troubles.append(behind)
    group_seconds = time.monotonic() - answered
    if not workload.stop_reading(_CLOSE_SECONDS):
        troubles.append(f"not every consumer closed within {_CLOSE_SECONDS:.0f} s")
    if failed := workload.read_all(_READ_SECONDS):
        troubles.append(failed)
    troubles += workload.failures()
    troubles += [
        f"node {node.number} ended by itself:\n{node.log_tail()}" for node in cluster.unexpected_ends()
    ]
    if options.kills:
        troubles += [f"an application saw {error} x{count}" for error, count in recorder.errors.items()]
    return Result(
        recorder.history,
        check(recorder.history),
        troubles,
        recorder.errors,
        Counter(nemesis.done),
        {**figures(recorder.history, healing), "group_seconds": round(group_seconds, 2)},
    )


def busiest_leader(admin: AdminClient) -> int | None:
    """Return the node that leads the most partitions of the topic; None if no node answers."""
    try:
        topic = admin.list_topics(TOPIC, timeout=1.0).topics[TOPIC]
    except (KafkaException, KeyError):
        return None
    leaders = Counter(each.leader for each in topic.partitions.values() if each.leader > 0)
    return leaders.most_common(1)[0][0] if leaders else None


def figures(history: History, healing: float) -> dict[str, Any]:
    """Return the counts of operations, and the longest time without an acknowledgement."""
    outcomes = Counter(send.outcome for send in history.sends())
    acknowledged = sorted(
        send.completed for send in history.sends() if send.outcome == "ok" and send.completed is not None
    )
    gaps = [after - before for before, after in pairwise(acknowledged)]
    read = {value for poll in history.polls() for records in poll.records.values() for _, value in records}
    return {
        "sends_ok": outcomes["ok"],
        "sends_fail": outcomes["fail"],
        "sends_info": outcomes["info"],
        "excused_duplicates": excused_duplicates(history),
        "values_read": len(read),
        "read_by_members": len(
            {
                value
                for poll in history.polls()
                if poll.process.startswith("member")
                for records in poll.records.values()
                for _, value in records
            }
        ),
        "commits_ok": sum(
            1 for each in history.operations if isinstance(each, Commit) and each.outcome == "ok"
        ),
        "longest_gap_seconds": round(max(gaps, default=0.0), 2),
        "healing_seconds": round(healing, 2),
    }
