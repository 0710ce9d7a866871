"""The order of tests on xdist's workers: those that stay together, that begin first, or that `make quick` leaves out.

A scope is a file, or several files that share a costly server. The longest begin first, so that the workers end at about the
same time. The seconds are measured (`--durations=0`) and only need to be right in their order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

_ROOT = Path(__file__).resolve().parent.parent
OWN_SPARK = "tests/spark/kills/test_sink_kills.py"
"""It needs a Spark of its own, and so nothing of what others share."""
_ASKS_FOR_SPARK = re.compile(r"\b(spark: SparkSession|jvm_connector: |apache_kafka: )")
SPARK = frozenset(
    str(path.relative_to(_ROOT))
    for path in (_ROOT / "tests" / "spark").rglob("test_*.py")
    if _ASKS_FOR_SPARK.search(path.read_text())
)
"""Their tests run on the folder's Spark, or beside Apache Kafka: one start of each for all."""
APACHE_KAFKA = frozenset(
    (
        "tests/client/admin/test_admin.py",
        "tests/client/admin/test_admin_transactions.py",
        "tests/client/consumer/test_committed_readers.py",
        "tests/client/consumer/test_consumer_servers.py",
        "tests/client/core/test_servers.py",
        "tests/client/producer/test_producer.py",
        "tests/client/producer/test_transactional_servers.py",
        "tests/docs/walks/test_client.py",
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
    "tests/spark/mirror/test_mirror.py": 30,
    "tests/spark/mirror/test_mirror_more.py": 12,
    "tests/spark/delivery/test_exactly_once_task.py": 20,
    "tests/spark/reading/test_reading_loss.py": 10,
    "tests/spark/reading/test_reading_batch.py": 6,
    "tests/spark/reading/test_reading_stream.py": 6,
    "tests/spark/reading/test_decode.py": 12,
    "tests/spark/writing/test_row_hash.py": 6,
    "tests/node/requests/test_request_budget.py": 60,
    "tests/jepsen/test_cluster.py": 56,
    "tests/other_clients/test_groups.py": 50,
    "tests/node/life/test_stop_while_starting.py": 36,
    "tests/other_clients/test_apache_tools.py": 41,
    "tests/sim/runs/test_campaign.py": 45,
    "tests/sim/test_seeds.py": 35,
    "tests/log/cleaning/test_kafka_agrees.py": 45,
    "tests/sim/checks/test_availability.py": 20,
    "tests/sim/runs/test_clients.py": 12,
    "tests/docs/walks/test_cluster.py": 17,
    "tests/cli/nodes/test_three_nodes.py": 20,
    "tests/cli/test_hostile_directory.py": 30,
    "tests/spark/sessions/test_own_modules.py": 40,
    "tests/cluster/disks/test_moves_between_disks.py": 9,
    "tests/cli/test_disk_moves.py": 7,
    "tests/cluster/disks/test_moves_on_a_node.py": 14,
    "tests/cli/test_cli_end_to_end.py": 6,
    "tests/cli/nodes/test_dev.py": 25,
    "tests/security/logins/test_users_and_tokens.py": 14,
    "tests/node/life/test_bad_files.py": 20,
    "tests/security/nodes/test_secrets.py": 14,
    "tests/security/audit/test_audit_of_node.py": 13,
    "tests/security/logins/test_page_logins.py": 12,
    "tests/security/audit/test_audit_budgets.py": 12,
    "tests/node/life/test_away_at_the_start.py": 17,
    "tests/cluster/test_exactly_once.py": 40,
    "tests/cluster/test_deaths_in_a_transaction.py": 52,
    "tests/other_clients/test_transactional_producers.py": 24,
    "tests/security/nodes/test_nodes_know_each_other.py": 32,
    "tests/security/nodes/test_interoperation.py": 20,
    "tests/security/logins/test_our_tokens.py": 11,
    "tests/security/logins/test_renewals.py": 15,
    "tests/security/logins/test_sasl_attacks.py": 13,
    "tests/cluster/test_answers_and_images.py": 18,
    "tests/cluster/test_real_nodes.py": 16,
    "tests/security/tls/test_tls_attacks.py": 15,
    "tests/security/tls/test_certificates_change.py": 12,
    "tests/wire/framing/test_connection.py": 15,
    "tests/wire/batches/test_record_batch.py": 15,
    "tests/log/compacted/test_swap_crashes.py": 14,
    "tests/wire/codecs/test_codec.py": 14,
    "tests/wire/test_anatomy.py": 12,
    "tests/groups/test_group_restart.py": 14,
    "tests/sim/runs/test_cluster_in_sim.py": 10,
    "tests/sim/runs/test_operators.py": 13,
    "tests/security/nodes/test_plaintext_to_secured.py": 25,
    "tests/sim/checks/test_access_checks.py": 14,
    "tests/sim/checks/test_checks.py": 12,
    "tests/sim/runs/test_alone.py": 12,
    "tests/sim/runs/test_upgrade.py": 12,
    "tests/quorum/voters/test_controllers.py": 13,
    "tests/sim/runs/test_node_in_sim.py": 11,
    "tests/client/shells/test_aio_producer.py": 11,
    "tests/docs/walks/test_quickstart.py": 10,
    "tests/examples/test_examples.py": 10,
    "tests/cluster/disks/test_rotten_replica.py": 10,
    "tests/node/life/test_kill9.py": 9,
    "tests/node/life/test_cleaning.py": 9,
    "tests/docs/walks/test_operations.py": 9,
    "the shape of the code": 8,
    "tests/cluster/disks/test_real_disks.py": 12,
    "tests/cluster/disks/test_full_disk.py": 8,
    "tests/cluster/disks/test_coordinator_disk.py": 12,
    "tests/other_clients/test_live_transaction_version.py": 8,
    "tests/cluster/disks/test_frozen_disk.py": 20,
    "tests/wire/test_kio.py": 8,
    "tests/cli/test_usage.py": 8,
    "tests/cli/streams/test_ways_to_end.py": 20,
    "tests/cli/streams/test_go_on.py": 12,
    "tests/cli/test_hostile_words.py": 60,
    "tests/node/life/test_kill9_producer.py": 7,
    "tests/test_determinism.py": 7,
    "tests/cli/test_cli_admin.py": 7,
    "tests/cli/test_txn.py": 7,
    "tests/cli/test_txn_verdicts.py": 12,
    "tests/node/transactions/test_transaction_metrics.py": 10,
    "tests/node/transactions/test_prepared_transactions.py": 10,
    "tests/log/cleaning/test_cleaning_machine.py": 6,
    "tests/log/cleaning/test_log_cleaner.py": 8,
    "tests/quorum/voters/test_lost_logs.py": 6,
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
