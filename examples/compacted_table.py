"""Keep a table in a compacted topic: the latest record of each key is its row.

    python examples/compacted_table.py

When a program starts, it reads the whole topic, and so restores the table. A record without a value deletes its key.
The program prints:

    {'ann': 'Oslo', 'cleo': 'Rome'}
"""

import os

from odradek import Admin, Consumer, Producer
from odradek.client.admin import NewTopic

SERVER = os.environ.get("ODRADEK_BOOTSTRAP", "127.0.0.1:9092")
CHANGES = [("ann", "Bern"), ("ben", "Paris"), ("cleo", "Rome"), ("ann", "Oslo"), ("ben", None)]

with Admin(bootstrap_servers=SERVER) as admin:
    # The broker removes a key's older records in the background. A record that deletes a key is itself
    # removed after a day.
    admin.create_topics([NewTopic("homes", 2, configs={"cleanup.policy": "compact"})])

with Producer(bootstrap_servers=SERVER) as producer:
    for name, city in CHANGES:
        producer.send("homes", None if city is None else city.encode(), key=name.encode())


def read_table(topic: str) -> dict[str, str]:
    """Read a topic from its beginning to its present end, and return the latest value of each key."""
    table: dict[str, str] = {}
    with Consumer(bootstrap_servers=SERVER) as consumer:
        partitions = [(topic, number) for number in range(len(consumer.partitions_for(topic)))]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for record in consumer.poll():
                if record.value is None:
                    table.pop(record.key.decode(), None)
                else:
                    table[record.key.decode()] = record.value.decode()
    return dict(sorted(table.items()))


print(read_table("homes"))
