"""Share a topic's partitions among the members of a group, and commit the work that is done.

    python examples/consumer_group.py

Two members run as threads here; usually each is a process of its own. The program prints:

    12 orders done, by 2 members
    committed: [3, 3, 3, 3]
"""

import os
import threading
import time
from collections.abc import Callable

from odradek import Admin, Consumer, Producer, TopicPartition
from odradek.client.admin import NewTopic

SERVER = os.environ.get("ODRADEK_BOOTSTRAP", "127.0.0.1:9092")
PARTITIONS = 4
done_by: dict[bytes, str] = {}
shares: dict[str, int] = {}
over = threading.Event()


def work(name: str) -> None:
    """Run one member: poll, process, commit. If it dies before the commit, its last records are read again."""
    with Consumer(
        bootstrap_servers=SERVER,
        group_id="kitchen",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe(["orders"])
        while not over.is_set():
            records = consumer.poll(timeout=0.1)
            for record in records:
                done_by[record.value] = name  # the work
            if records:
                consumer.commit()
            shares[name] = len(consumer.assignment())


with Admin(bootstrap_servers=SERVER) as admin:
    admin.create_topics([NewTopic("orders", PARTITIONS)])

members = [threading.Thread(target=work, args=[name], daemon=True) for name in ("ann", "bob")]
for member in members:
    member.start()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until `is_so()` is true. Fail if a member has ended."""
    while not is_so():
        assert all(member.is_alive() for member in members)
        time.sleep(0.1)


# The group gives two partitions to each member. Write only after that, so that both members have work.
wait_until(lambda: list(shares.values()) == [2, 2])
with Producer(bootstrap_servers=SERVER) as producer:
    for number in range(12):
        producer.send("orders", b"order %d" % number, partition=number % PARTITIONS)
wait_until(lambda: len(done_by) == 12)

over.set()
for member in members:
    member.join()
print(f"{len(done_by)} orders done, by {len(set(done_by.values()))} members")

with Admin(bootstrap_servers=SERVER) as admin:
    [group] = admin.list_group_offsets({"kitchen": None})
    all_four = [TopicPartition("orders", number) for number in range(PARTITIONS)]
    print("committed:", [group.offsets[partition].offset for partition in all_four])
