"""Copy a topic to another cluster exactly once, and move its readers there.

    odradek dev --port 9192 --data other &
    ODRADEK_TARGET=127.0.0.1:9192 python examples/mirror.py

`odradek mirror` does the work; either cluster may be Apache Kafka. Besides the progress, the program prints:

    the group goes on in the other cluster at b'item 2'
"""

import os
import subprocess
import sys

from odradek import Admin, Consumer, Producer
from odradek.client.admin import NewTopic

SOURCE = os.environ.get("ODRADEK_BOOTSTRAP", "127.0.0.1:9092")
TARGET = os.environ.get("ODRADEK_TARGET", "127.0.0.1:9192")
READER = {"group.id": "audit", "auto.offset.reset": "earliest", "enable.auto.commit": False}

# In the old cluster: a topic, and a group that has read two of its records.
with Admin(bootstrap_servers=SOURCE) as admin:
    admin.create_topics([NewTopic("stock", 1)])
with Producer(bootstrap_servers=SOURCE) as producer:
    for number in range(4):
        producer.send("stock", b"item %d" % number)
with Consumer(READER, bootstrap_servers=SOURCE) as consumer:
    consumer.subscribe(["stock"])
    for number, record in enumerate(consumer, 1):
        consumer.commit(record)
        if number == 2:
            break

# Copy the records, then translate the group's offsets. Run it again at any time: it continues from its last position.
# It prints its plan first; with `--plan` it only prints the plan.
command = [sys.executable, "-m", "odradek", "mirror", "--source", SOURCE, "--target", TARGET]
subprocess.run([*command, "--topic", "stock", "--group", "audit"], check=True, stdout=subprocess.DEVNULL)

# In the new cluster, the same program continues to read, with another address.
with Consumer(READER, bootstrap_servers=TARGET, isolation_level="read_committed") as consumer:
    consumer.subscribe(["stock"])
    print("the group goes on in the other cluster at", next(iter(consumer)).value)
