"""Create, configure, grow, inspect and delete a topic.

    python examples/admin.py

Calls about several topics return an outcome for each: its error, or None. The program prints:

    brokers: 1
    created: 2 partitions
    again: TOPIC_ALREADY_EXISTS
    retention.ms = 3600000 (TOPIC_CONFIG)
    partitions: 4, led by {1}
    deleted: True
"""

import os

from odradek import Admin
from odradek.client.admin import AlterConfig, ConfigResource, NewTopic, ResourceType

SERVER = os.environ.get("ODRADEK_BOOTSTRAP", "127.0.0.1:9092")

with Admin(bootstrap_servers=SERVER) as admin:
    print("brokers:", len(admin.describe_cluster().brokers))

    [created] = admin.create_topics([NewTopic("alerts", partitions=2, replication_factor=1)])
    print(f"created: {created.partitions} partitions" if created.error is None else created.error)
    [again] = admin.create_topics([NewTopic("alerts")])
    print("again:", again.error.code.name if again.error else "created")

    alerts = ConfigResource(ResourceType.TOPIC, "alerts")
    admin.incremental_alter_configs({alerts: [AlterConfig("retention.ms", "3600000")]})
    [config] = admin.describe_configs([alerts], ["retention.ms"])
    for entry in config.entries:
        print(f"{entry.name} = {entry.value} ({entry.source.name})")

    admin.create_partitions({"alerts": 4})
    [topic] = admin.describe_topics(["alerts"])
    leaders = {partition.leader for partition in topic.partitions.values()}
    print(f"partitions: {len(topic.partitions)}, led by {leaders}")

    [(_, error)] = admin.delete_topics(["alerts"])
    print("deleted:", error is None)
