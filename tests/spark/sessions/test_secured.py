"""Source and sink log in over TLS with `kafka.security.*` options. Plans and errors hide the password."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from odradek import Admin
from odradek.client.admin import NewTopic
from odradek.spark.pipelines.job import Topics
from odradek.spark.source_options import SourceOptions
from odradek.spark.writing.sink_plan import plan_write
from tests.security.secured_node import SecuredNode, secured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["secured"]

PASSWORD = "alice-secret"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def login(secured: SecuredNode, password: str = PASSWORD) -> dict[str, str]:
    """Return the options with which alice logs in by SCRAM over TLS."""
    return {
        "kafka.bootstrap.servers": secured.sasl_tls,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{MODULE} required username="alice" password="{password}";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": secured.authority,
    }


def test_write_and_read_over_sasl_ssl(spark: SparkSession, secured: SecuredNode) -> None:
    """Driver and executors log in, and rows are written and read. Spark's plans do not contain the password."""
    with Admin(bootstrap_servers=secured.plaintext) as admin:
        [created] = admin.create_topics([NewTopic("sparked", partitions=2)])
        assert created.error is None
    options = login(secured)
    rows = spark.range(100).selectExpr("cast(id as string) as value")
    rows.write.format("odradek").options(**options).option("topic", "sparked").mode("append").save()
    read = spark.read.format("odradek").options(**options).option("subscribe", "sparked").load()
    assert sorted(int(row.value) for row in read.select("value").collect()) == list(range(100))
    plans = read._jdf.queryExecution().toString()
    assert "sparked" in plans or "odradek" in plans
    assert PASSWORD not in plans
    # Jobs look up the topic with a client of their own, which must log in, too.
    _, bounds = Topics(spark, "odradek", options).bounds("sparked")
    assert sum(end - begin for begin, end in bounds.values()) >= 100


def test_a_wrong_password_is_told_without_it(spark: SparkSession, secured: SecuredNode) -> None:
    """A wrong password is refused with a reason. The error contains neither the password nor the JAAS line."""
    options = {**login(secured, "mistyped"), "kafka.request.timeout.ms": "5000"}
    read = spark.read.format("odradek").options(**options).option("subscribe", "sparked").load()
    with pytest.raises(Exception, match=r"(?i)authentication") as refusal:
        read.count()
    assert "mistyped" not in str(refusal.value)


def test_no_printed_value_has_the_password(secured: SecuredNode) -> None:
    """Printed settings hide the password, and so does the error for an invalid option."""
    from pyspark.sql.types import StringType, StructField, StructType

    source = SourceOptions.parse({**login(secured), "subscribe": "t"})
    sink = plan_write({**login(secured), "topic": "t"}, StructType([StructField("value", StringType())]))
    for printed in (repr(source), repr(sink), repr(source.consumer), repr(sink.settings)):
        assert PASSWORD not in printed
    broken = {**login(secured), "kafka.sasl.jaas.config": f'password="{PASSWORD}'}
    with pytest.raises(ValueError, match=r"sasl\.jaas\.config") as refusal:
        SourceOptions.parse({**broken, "subscribe": "t"})
    assert PASSWORD not in str(refusal.value)
