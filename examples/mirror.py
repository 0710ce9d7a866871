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

# Prepare the old cluster: create a topic, and let a group read two of its four records.
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

# Copy the records, then translate the group's offsets. The command may be run again at any time, and
# continues where it stopped. It first prints its plan. With `--plan` it prints the plan and copies nothing.
command = [sys.executable, "-m", "odradek", "mirror", "--source", SOURCE, "--target", TARGET]
subprocess.run([*command, "--topic", "stock", "--group", "audit"], check=True, stdout=subprocess.DEVNULL)

# The group's program needs only the new address. It continues to read in the new cluster.
with Consumer(READER, bootstrap_servers=TARGET, isolation_level="read_committed") as consumer:
    consumer.subscribe(["stock"])
    print("the group goes on in the other cluster at", next(iter(consumer)).value)
