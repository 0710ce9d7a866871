"""Write records that cannot be processed to another topic, and continue.

    python examples/dead_letter_queue.py

A record is tried three times. Then it goes to the topic `payments.dead`, with headers that say where it came from and
why it failed. Later records do not have to wait. The program prints:

    paid: 10, 25
    dead: b'ten' from payments-0@1, ValueError: invalid literal for int() with base 10: b'ten'
    dead: b'-5' from payments-0@2, ValueError: the amount -5 is negative
"""

import os

from odradek import Admin, Consumer, ConsumerRecord, Producer
from odradek.client.admin import NewTopic

SERVER = os.environ.get("ODRADEK_BOOTSTRAP", "127.0.0.1:9092")
ATTEMPTS = 3
paid: list[int] = []


def pay(value: bytes) -> None:
    """Pay the amount in a record's value. Raises `ValueError` if the value is not a number, or is negative."""
    amount = int(value)
    if amount < 0:
        raise ValueError(f"the amount {amount} is negative")
    paid.append(amount)


def process(record: ConsumerRecord, producer: Producer) -> None:
    """Try to process a record up to three times, then write it to the topic of dead letters."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            pay(record.value)
            return
        except ValueError as error:
            if attempt == ATTEMPTS:
                place = f"{record.topic}-{record.partition}@{record.offset}"
                reason = f"{type(error).__name__}: {error}"
                headers = [*record.headers, ("origin", place.encode()), ("error", reason.encode())]
                producer.send("payments.dead", record.value, record.key, headers).result()


def consumer_of(topic: str, group: str) -> Consumer:
    """Open a consumer without automatic commits, because the program itself commits after it has processed
    records.
    """
    consumer = Consumer(
        bootstrap_servers=SERVER, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.subscribe([topic])
    return consumer


with Admin(bootstrap_servers=SERVER) as admin:
    admin.create_topics([NewTopic("payments", 1), NewTopic("payments.dead", 1)])

with Producer(bootstrap_servers=SERVER) as producer:
    for value in (b"10", b"ten", b"-5", b"25"):
        producer.send("payments", value)
    producer.flush()

    with consumer_of("payments", "bank") as consumer:
        while len(paid) < 2:
            for record in consumer.poll():
                process(record, producer)
            consumer.commit()  # the dead letters are written by now, so this commit may cover them
print("paid:", ", ".join(map(str, paid)))

with consumer_of("payments.dead", "support") as consumer:
    for _, record in zip(range(2), consumer, strict=False):
        headers = {name: (text or b"").decode() for name, text in record.headers}
        print(f"dead: {record.value!r} from {headers['origin']}, {headers['error']}")
