"""The order of tests on xdist's workers: those that stay together, that begin first, or that `make quick` leaves out.

A scope is a file, or several files that share a costly server. The longest begin first, so that the workers end at about the
same time. The seconds are measured (`--durations=0`) and only need to be right in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

OWN_SPARK = "tests/spark/test_sink_kills.py"
"""It needs a Spark of its own, and so nothing of what others share."""
SPARK = frozenset(
    f"tests/spark/test_{name}.py"
    for name in (
        "guide",
        "mirror_kafka",
        "nearest_replica",
        "pipelines",
        "secured",
        "sink",
        "source_batch",
        "source_jvm",
        "source_stream",
        "stream_example",
        "two_phase_kills",
        "two_phase_spark",
    )
)
"""Their tests run on the folder's Spark, or beside Apache Kafka: one start of each for all."""
APACHE_KAFKA = frozenset(
    (
        *(
            f"tests/client/test_{name}.py"
            for name in (
                "admin",
                "admin_transactions",
                "committed_readers",
                "consumer_servers",
                "producer",
                "servers",
                "transactional_servers",
            )
        ),
        "tests/docs/test_client.py",
    )
)
"""Their tests run against Apache Kafka, as some of Spark's do: one start for all."""
JAVA = "Spark and Apache Kafka"
SHAPE = ("tests/test_architecture.py", "tests/test_structure.py")
"""They read the same syntax trees."""

SECONDS = {
    JAVA: 175,
    "tests/deploy/test_life.py": 90,
    OWN_SPARK: 40,
    "tests/spark/test_mirror.py": 30,
    "tests/spark/test_mirror_more.py": 12,
    "tests/spark/test_exactly_once_task.py": 20,
    "tests/spark/test_reading_loss.py": 10,
    "tests/spark/test_reading_batch.py": 6,
    "tests/spark/test_reading_stream.py": 6,
    "tests/spark/test_decode.py": 12,
    "tests/spark/test_row_hash.py": 6,
    "tests/node/test_request_budget.py": 60,
    "tests/jepsen/test_cluster.py": 56,
    "tests/other_clients/test_groups.py": 50,
    "tests/node/test_stop_while_starting.py": 36,
    "tests/other_clients/test_apache_tools.py": 41,
    "tests/sim/test_campaign.py": 45,
    "tests/sim/test_seeds.py": 35,
    "tests/log/cleaning/test_kafka_agrees.py": 45,
    "tests/sim/test_availability.py": 20,
    "tests/sim/test_clients.py": 12,
    "tests/docs/test_cluster.py": 17,
    "tests/cli/test_three_nodes.py": 20,
    "tests/cli/test_hostile_directory.py": 30,
    "tests/spark/test_own_modules.py": 40,
    "tests/cluster/test_moves_between_disks.py": 9,
    "tests/cli/test_disk_moves.py": 7,
    "tests/cluster/test_moves_on_a_node.py": 14,
    "tests/cli/test_cli_end_to_end.py": 6,
    "tests/cli/test_dev.py": 25,
    "tests/security/test_users_and_tokens.py": 14,
    "tests/node/test_bad_files.py": 20,
    "tests/security/test_secrets.py": 14,
    "tests/security/test_audit_of_node.py": 13,
    "tests/security/test_page_logins.py": 12,
    "tests/security/test_audit_budgets.py": 12,
    "tests/node/test_away_at_the_start.py": 17,
    "tests/cluster/test_exactly_once.py": 40,
    "tests/cluster/test_deaths_in_a_transaction.py": 52,
    "tests/other_clients/test_transactional_producers.py": 24,
    "tests/security/test_nodes_know_each_other.py": 32,
    "tests/security/test_interoperation.py": 20,
    "tests/security/test_our_tokens.py": 11,
    "tests/security/test_renewals.py": 15,
    "tests/security/test_sasl_attacks.py": 13,
    "tests/cluster/test_answers_and_images.py": 18,
    "tests/cluster/test_real_nodes.py": 16,
    "tests/security/test_tls_attacks.py": 15,
    "tests/security/test_certificates_change.py": 12,
    "tests/wire/test_connection.py": 15,
    "tests/wire/test_record_batch.py": 15,
    "tests/log/compacted/test_swap_crashes.py": 14,
    "tests/wire/test_codec.py": 14,
    "tests/wire/test_anatomy.py": 12,
    "tests/groups/test_group_restart.py": 14,
    "tests/sim/test_cluster_in_sim.py": 10,
    "tests/sim/test_operators.py": 13,
    "tests/security/test_plaintext_to_secured.py": 25,
    "tests/sim/test_access_checks.py": 14,
    "tests/sim/test_checks.py": 12,
    "tests/sim/test_alone.py": 12,
    "tests/sim/test_upgrade.py": 12,
    "tests/quorum/test_controllers.py": 13,
    "tests/sim/test_node_in_sim.py": 11,
    "tests/client/test_aio_producer.py": 11,
    "tests/docs/test_quickstart.py": 10,
    "tests/examples/test_examples.py": 10,
    "tests/cluster/test_rotten_replica.py": 10,
    "tests/node/test_kill9.py": 9,
    "tests/node/test_cleaning.py": 9,
    "tests/docs/test_operations.py": 9,
    "the shape of the code": 8,
    "tests/cluster/test_real_disks.py": 12,
    "tests/cluster/test_full_disk.py": 8,
    "tests/cluster/test_coordinator_disk.py": 12,
    "tests/other_clients/test_live_transaction_version.py": 8,
    "tests/cluster/test_frozen_disk.py": 20,
    "tests/wire/test_kio.py": 8,
    "tests/cli/test_usage.py": 8,
    "tests/cli/test_ways_to_end.py": 20,
    "tests/cli/test_go_on.py": 12,
    "tests/cli/test_hostile_words.py": 60,
    "tests/node/test_kill9_producer.py": 7,
    "tests/test_determinism.py": 7,
    "tests/cli/test_cli_admin.py": 7,
    "tests/cli/test_txn.py": 7,
    "tests/cli/test_txn_verdicts.py": 12,
    "tests/node/test_transaction_metrics.py": 10,
    "tests/node/test_prepared_transactions.py": 10,
    "tests/log/cleaning/test_cleaning_machine.py": 6,
    "tests/log/cleaning/test_log_cleaner.py": 8,
    "tests/quorum/test_lost_logs.py": 6,
}
"""The seconds that a scope takes, for those of more than five."""


def scope_of(nodeid: str) -> str:
    """The scope that stays together with this test: its file, one Spark and one Apache Kafka, or the syntax trees."""
    path = nodeid.partition("::")[0]
    if path in APACHE_KAFKA or path in SPARK:
        return JAVA
    if path in SHAPE:
        return "the shape of the code"
    return path


def seconds_of(scope: str) -> int:
    """The seconds that the scope takes; 0 where it is short."""
    return SECONDS.get(scope, 0)


def share_of(files: Sequence[Path], number: int, count: int) -> Sequence[Path]:
    """The files of worker `number` of `count`: neighbours, which import the same modules."""
    return files[len(files) * number // count : len(files) * (number + 1) // count]


def seeds(count: int, quick: int = 2) -> list[Any]:
    """Parameters for `count` seeds, of which `make quick` runs the first `quick`."""
    return [seed if seed < quick else pytest.param(seed, marks=pytest.mark.long) for seed in range(count)]


def examples(count: int) -> int:
    """The number of examples that Hypothesis makes for `count` of `make test`: the profile `quick` makes a fifth."""
    return max(1, count * settings().max_examples // 100)
