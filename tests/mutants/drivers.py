"""Drivers that run seeds against a mutant: with the quorum alone, with a partition alone, or with whole clusters.

An aimed driver uses fewer kinds of trouble than a seed would draw, or more of them; its docstring says so. The default
profile can find such a mutant too, but needs more seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import attrs
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from odradek.env.ports import Buffer
from sim.alone import raft_alone, replication_alone
from sim.alone.consumers import consumers_alone
from sim.alone.groups import groups_alone
from sim.alone.parts import run_schedules
from sim.alone.quorum import quorum_alone
from sim.alone.raft_alone import RaftPlan
from sim.alone.transactions import transactions_alone
from sim.load.keyed.keying import CLOCK_KINDS
from sim.machine.cluster_members import QUICK_SETTINGS, SETTINGS, Shape
from sim.machine.guards import CLIENTS_LOG_IN
from sim.machine.network import SimConn
from sim.machine.weather import Weather
from sim.options import TRANSACTION_SETTINGS, RunOptions
from sim.run import run
from sim.scenarios.lone_node_scenario import Scenario
from sim.scenarios.recovery_scenario import RecoveryScenario
from tests.log.cleaning.test_cleaning_machine import CompactedLog
from tests.mutants import disk_scenarios
from tests.mutants.mutant import CAMPAIGN, Driver


def _verdict_of(function: Callable[[int], object]) -> Driver:
    def driver(seed: int) -> str:
        try:
            function(seed)
        except Exception as error:  # noqa: BLE001 - any failure shows the mutant
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        return ""

    return driver


def _run_options(seed: int, options: RunOptions) -> str:
    result = run(seed, options)
    return "" if result.verdict == "ok" else result.signature


def voters(seed: int) -> str:
    """Run an aimed seed: four voters that change all the time, and hardly any records."""
    weights = {
        "deliver": 10.0,
        "tick": 3.0,
        "sync": 4.0,
        "start": 2.0,
        "quiet": 0.5,
        "isolate": 0.5,
        "crash": 0.3,
        "voters": 2.0,
        "append": 0.3,
        "lose": 0.5,
    }
    plan = RaftPlan(voters=4, steps=500, weights=weights)
    return _verdict_of(lambda each: raft_alone.run(each, plan))(seed)


def recovery(seed: int) -> str:
    """Run a cluster whose voters lose their metadata disks twice, and an operator who recovers the quorum."""
    return _verdict_of(lambda each: RecoveryScenario(each).run())(seed)


def cluster(seed: int) -> str:
    """Run whole clusters of the lite profile with few faults, which takes half the time."""
    return _run_options(seed, attrs.evolve(RunOptions.draw(seed, "lite"), weather=Weather()))


def power(seed: int) -> str:
    """Run an aimed seed: clusters whose brokers lose power and return before their sessions end. There are no other faults."""
    options = RunOptions.draw(seed, "lite", nodes=3, seconds=25.0)
    shape = attrs.evolve(options.shape, settings=SETTINGS, log_dirs=1)
    storm = attrs.evolve(options.storm, kinds=("deaths", "deaths", "deaths"), power=True)
    return _run_options(
        seed,
        attrs.evolve(options, shape=shape, storm=storm, weather=Weather(), workloads=("produce",)),
    )


def replaced(seed: int) -> str:
    """Run an aimed seed: clusters with separate controllers, whose brokers get new disks. There are no other faults."""
    options = RunOptions.draw(seed, "lite", controllers=3, seconds=25.0)
    shape = attrs.evolve(options.shape, settings={**SETTINGS, **QUICK_SETTINGS}, log_dirs=1, older=0)
    storm = attrs.evolve(options.storm, kinds=("wipes",), power=True)
    return _run_options(
        seed,
        attrs.evolve(options, shape=shape, storm=storm, weather=Weather(), workloads=("produce",)),
    )


def offsets(seed: int) -> str:
    """Run an aimed seed: slow connections, leaders that die or freeze, deleted records, and a client that asks for offsets."""
    options = RunOptions.draw(seed, "lite", seconds=25.0)
    shape = attrs.evolve(options.shape, settings={**SETTINGS, **QUICK_SETTINGS}, log_dirs=1, older=0)
    storm = attrs.evolve(options.storm, kinds=("deaths", "pauses", "operator", "operator"), power=False)
    weather = Weather(latency_seconds=(0.001, 0.05))
    workloads = ("produce", "trim", "churn", "offsets")
    return _run_options(
        seed, attrs.evolve(options, shape=shape, storm=storm, weather=weather, workloads=workloads)
    )


def crowd(seed: int) -> str:
    """Run an aimed seed: groups whose members come and go, and coordinators that die or are isolated. All other clients are
    producers.

    The partitions of coordinators get a new segment each second.
    """
    options = RunOptions.draw(seed, "lite", seconds=20.0)
    settings = {
        **SETTINGS,
        **QUICK_SETTINGS,
        "group.min.session.timeout.ms": "1000",
        "group.initial.rebalance.delay.ms": "0",
        "log.roll.ms": "1000",
    }
    shape = attrs.evolve(options.shape, settings=settings, log_dirs=1, older=0, segment_bytes=0)
    storm = attrs.evolve(options.storm, kinds=("deaths", "links", "links", "links"), power=False)
    return _run_options(
        seed,
        attrs.evolve(
            options, shape=shape, storm=storm, weather=Weather(), workloads=("produce", "crowd"), clients=1
        ),
    )


def varied(seed: int) -> str:
    """Run an aimed seed: producers of every kind, and brokers that die or are isolated. There are no other faults."""
    options = RunOptions.draw(seed, "lite", seconds=20.0)
    shape = attrs.evolve(options.shape, settings={**SETTINGS, **QUICK_SETTINGS}, log_dirs=1, older=0)
    storm = attrs.evolve(options.storm, kinds=("deaths", "links", "links", "links"), power=False)
    return _run_options(
        seed,
        attrs.evolve(
            options, shape=shape, storm=storm, weather=Weather(), workloads=("produce", "varied"), clients=1
        ),
    )


def churn(seed: int) -> str:
    """Run an aimed seed: a single node on a slow disk, stopped and started, with upkeep each second, and topics that come and go."""
    settings = {"log.retention.check.interval.ms": "1000", "log.flush.offset.checkpoint.interval.ms": "2000"}
    scenario = Scenario(
        seed,
        crashes=12,
        clients=1,
        churners=3,
        shape=Shape(nodes=1, settings=settings),
        deaths=("stop", "all"),
        weather=Weather(worker_seconds=(0.05, 0.5)),
    )
    return _verdict_of(lambda _: scenario.run())(seed)


def order(seed: int) -> str:
    """Run an aimed seed: two seconds of producers without faults. Each answer is compared with the requests of its connection.

    Our clients close a connection on an unexpected answer and open another one. That would hide the bug from a run's
    checkers.
    """
    options = attrs.evolve(RunOptions.draw(seed, "calm", nodes=3, seconds=2.0), workloads=("produce",))
    watch = AnswerOrder()
    send = SimConn.send

    def watched(conn: SimConn, chunks: Sequence[Buffer], more: bool = False) -> int:
        data = b"".join(chunks)
        count = send(conn, chunks, more)
        watch.sent(conn.name, data[:count])
        return count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimConn, "send", watched)
        return _run_options(seed, options) or watch.broken


class AnswerOrder:
    """Compares the answers of each connection with its requests. `broken` describes the first mistake."""

    def __init__(self) -> None:
        self.broken = ""
        self._buffers: dict[str, bytearray] = {}
        self._asked: dict[str, list[int]] = {}

    def sent(self, end: str, data: bytes) -> None:
        """Check bytes that one end of a connection sends. `end` is its name: `c7>` for the client, `c7<` for the
        server."""
        buffer = self._buffers.setdefault(end, bytearray())
        buffer += data
        while len(buffer) >= 4 and len(buffer) >= (size := 4 + int.from_bytes(buffer[:4], "big")):
            asked = self._asked.setdefault(end[:-1], [])
            if end.endswith(">"):
                asked.append(int.from_bytes(buffer[8:12], "big"))
            else:
                correlation_id = int.from_bytes(buffer[4:8], "big")
                if correlation_id in asked and asked[0] != correlation_id and not self.broken:
                    self.broken = f"{end} answers {correlation_id}, {asked[0]} was asked before"
                if correlation_id in asked:
                    asked.remove(correlation_id)
            del buffer[:size]


def keyed(seed: int) -> str:
    """Run an aimed seed: clusters of three in which only a compacted topic is written."""
    return _run_options(seed, _keyed(seed))


def _keyed(seed: int) -> RunOptions:
    options = RunOptions.draw(seed, "lite", nodes=3, controllers=0, seconds=12.0)
    kinds = tuple(kind for kind in options.storm.kinds if kind not in CLOCK_KINDS) or ("deaths",)
    settings = {**options.shape.settings, "log.cleaner.backoff.ms": "100"}
    return attrs.evolve(
        options,
        shape=attrs.evolve(options.shape, settings=settings),
        storm=attrs.evolve(options.storm, kinds=(*kinds, "deaths")),
        workloads=("produce", "keyed"),
        clients=1,
        weather=Weather(),
        duties=(),
    )


def moves(seed: int) -> str:
    """Run an aimed seed: clusters with two disks a broker, operators that move replicas between them, deletions and deaths."""
    options = RunOptions.draw(seed, "lite", seconds=25.0)
    shape = attrs.evolve(options.shape, settings={**SETTINGS, **QUICK_SETTINGS}, log_dirs=2, older=0)
    storm = attrs.evolve(options.storm, kinds=("deaths", "pauses"), power=True)
    return _run_options(
        seed,
        attrs.evolve(
            options,
            shape=shape,
            storm=storm,
            weather=Weather(),
            workloads=("produce", "trim"),
            duties=("directories", "directories"),
        ),
    )


def retirements(seed: int) -> str:
    """Run an aimed seed: clusters with two disks a broker, and an operator who empties disks."""
    options = RunOptions.draw(seed, "lite", seconds=10.0)
    shape = attrs.evolve(options.shape, settings={**SETTINGS, **QUICK_SETTINGS}, log_dirs=2, older=0)
    storm = attrs.evolve(options.storm, kinds=("deaths",), power=True)
    return _run_options(
        seed,
        attrs.evolve(
            options,
            shape=shape,
            storm=storm,
            weather=Weather(),
            workloads=("produce", "trim"),
            duties=("retirements",),
        ),
    )


def copy(seed: int) -> str:
    """Run an aimed seed: programs that copy in transactions, and nodes that die, freeze or are isolated. There are no other
    faults."""
    return _run_options(seed, _copying(seed, "deaths", "links", "pauses", "links"))


def endings(seed: int) -> str:
    """Run an aimed seed: programs that copy in transactions, and faults at the ends of transactions
    (`sim.storm.transaction_troubles`)."""
    return _run_options(seed, _copying(seed, "coordinators", "markers", "links"))


def handovers(seed: int) -> str:
    """Run an aimed seed: programs that copy in transactions, and markers that arrive after another coordinator has taken over."""
    return _run_options(seed, _copying(seed, "handovers", "handovers", nodes=4))


def transactions(seed: int) -> str:
    """Run an aimed seed: a transaction coordinator alone, whose markers and requests arrive late."""
    return _verdict_of(transactions_alone.run)(seed)


def lonely(seed: int) -> str:
    """Run an aimed seed: programs that copy in transactions between partitions of one replica, and faults aimed at their leaders."""
    options = _copying(seed, "markers", "markers")
    return _run_options(seed, attrs.evolve(options, shape=options.shape.replicated(1, 1)))


def _copying(seed: int, *kinds: str, nodes: int = 3) -> RunOptions:
    options = RunOptions.draw(seed, "lite", nodes=nodes, controllers=0, seconds=20.0)
    draws = Random(f"{seed}/copy?")
    drawn = {key: draws.choice(values) for key, values in TRANSACTION_SETTINGS.items()}
    shape = attrs.evolve(options.shape, settings={**options.shape.settings, **drawn}, log_dirs=1, older=0)
    storm = attrs.evolve(options.storm, kinds=kinds, power=False)
    return attrs.evolve(
        options,
        shape=shape,
        storm=storm,
        weather=Weather(),
        workloads=("produce", "copy"),
        clients=1,
        duties=(),
    )


def access_options(seed: int) -> RunOptions:
    """Make options for clients whose rights and passwords change all the time, while brokers die. Nothing else
    happens."""
    options = RunOptions.draw(seed, "lite", nodes=3, seconds=12.0)
    shape = attrs.evolve(
        options.shape,
        settings={**SETTINGS, **QUICK_SETTINGS},
        log_dirs=1,
        older=0,
        guarded=CLIENTS_LOG_IN,
        session_ms=3000,
    )
    storm = attrs.evolve(options.storm, kinds=("deaths",), power=False)
    return attrs.evolve(
        options,
        shape=shape,
        storm=storm,
        weather=Weather(),
        workloads=("produce",),
        clients=1,
        duties=("access",),
    )


def access(seed: int) -> str:
    """Run an aimed seed: rights and passwords that change all the time, while brokers die (`access_options`)."""
    return _run_options(seed, access_options(seed))


def quotas(seed: int) -> str:
    """Run an aimed seed: quotas that change all the time, while brokers die. Nothing else happens."""
    options = RunOptions.draw(seed, "lite", nodes=3, seconds=8.0)
    shape = attrs.evolve(
        options.shape, settings={**SETTINGS, **QUICK_SETTINGS}, log_dirs=1, older=0, guarded=0
    )
    storm = attrs.evolve(options.storm, kinds=("deaths",), power=False)
    return _run_options(
        seed,
        attrs.evolve(
            options,
            shape=shape,
            storm=storm,
            weather=Weather(),
            workloads=("produce",),
            clients=1,
            duties=("quotas",),
        ),
    )


def compacted_log(seed: int) -> str:
    """Run an aimed seed: one log that is cleaned again and again, with crashes at any call to its disk, in a hundred schedules."""

    class Seeded(CompactedLog):
        _hypothesis_internal_use_seed = seed

    plan = settings(
        max_examples=100,
        stateful_step_count=25,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    return _verdict_of(lambda _: run_state_machine_as_test(Seeded, settings=plan))(seed)


def campaign(seed: int) -> str:
    """Run a seed like a campaign: the cluster with the drawn options, then the seed's schedules of parts alone."""
    verdict = _run_options(seed, RunOptions.draw(seed))
    if verdict:
        return verdict
    failed = run_schedules(seed)
    return "" if failed is None else f"{failed.part} {failed.seed} alone: {failed.verdict}: {failed.message}"


DRIVERS: Mapping[str, Driver] = {
    CAMPAIGN: campaign,
    "raft": _verdict_of(raft_alone.run),
    "voters": voters,
    "recovery": recovery,
    "quorum": _verdict_of(quorum_alone.run),
    "groups": _verdict_of(groups_alone.run),
    "consumers": _verdict_of(consumers_alone.run),
    "replication": _verdict_of(replication_alone.run),
    "cluster": cluster,
    "power": power,
    "replaced": replaced,
    "offsets": offsets,
    "crowd": crowd,
    "varied": varied,
    "churn": churn,
    "order": order,
    "keyed": keyed,
    "copy": copy,
    "moves": moves,
    "retirements": retirements,
    "move_and_die": _verdict_of(disk_scenarios.move_and_die),
    "endings": endings,
    "handovers": handovers,
    "lonely": lonely,
    "transactions": transactions,
    "access": access,
    "quotas": quotas,
    "compacted_log": compacted_log,
    "fill_up": _verdict_of(disk_scenarios.fill_up),
    "fall_silent": _verdict_of(disk_scenarios.fall_silent),
    "rot_without_heirs": _verdict_of(disk_scenarios.rot_without_heirs),
}
