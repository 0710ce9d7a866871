"""Read, compute and write so that each record is processed exactly once.

    python examples/transactions.py

The written records and the read position are committed together, or neither is. The first attempt fails on purpose.
The program prints:

    aborted: the printer is on fire
    committed 3 invoices
    a reader sees 3: apples, figs, pears
"""

import os

from odradek import Admin, Consumer, Producer, TopicPartition
from odradek.client.admin import NewTopic

SERVER = os.environ.get("ODRADEK_BOOTSTRAP", "127.0.0.1:9092")

with Admin(bootstrap_servers=SERVER) as admin:
    admin.create_topics([NewTopic("sales", 1), NewTopic("invoices", 1)])
with Producer(bootstrap_servers=SERVER) as shop:
    for fruit in (b"apples", b"figs", b"pears"):
        shop.send("sales", fruit)

printer_burns = True
with (
    Consumer(
        bootstrap_servers=SERVER,
        group_id="billing",
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer,
    # A process that used this transactional id may have left a transaction open. The next process with this
    # id aborts that transaction, and the earlier process can write nothing more.
    Producer(bootstrap_servers=SERVER, transactional_id="billing-1") as producer,
):
    producer.init_transactions()
    consumer.subscribe(["sales"])
    written = 0
    while written < 3:
        records = consumer.poll()
        try:
            with producer.transaction():
                for record in records:
                    producer.send("invoices", record.value)
                done = {(each.topic, each.partition): each.offset + 1 for each in records}
                producer.send_offsets_to_transaction(done, consumer.group_metadata())
                if records and printer_burns:
                    printer_burns = False
                    raise OSError("the printer is on fire")
            written += len(records)
        except OSError as error:
            print("aborted:", error)
            # Go back to the records that the aborted transaction had read.
            for partition in {(each.topic, each.partition) for each in records}:
                first = min(each.offset for each in records if (each.topic, each.partition) == partition)
                consumer.seek(partition, first)
    print("committed", written, "invoices")

written_to = TopicPartition("invoices", 0)
with Consumer(bootstrap_servers=SERVER, isolation_level="read_committed") as reader:
    reader.assign([written_to])
    reader.seek_to_beginning()
    end = reader.end_offsets([written_to])[written_to]
    invoices: list[str] = []
    while reader.position(written_to) < end:
        invoices += [record.value.decode() for record in reader.poll()]
print(f"a reader sees {len(invoices)}:", ", ".join(sorted(set(invoices))))
