"""Set records aside that cannot be processed, and go on.

    python examples/dead_letter_queue.py

A record is tried three times. Then it goes to the topic `payments.dead`, with headers that say where it came from and
why. Nothing behind it has to wait. It prints:

    paid: 10, 25
    dead: b'ten' from payments-0@1, ValueError: invalid literal for int() with base 10: b'ten'
    dead: b'-5' from payments-0@2, ValueError: a payment of -5
"""

import os

from odradek import Admin, Consumer, ConsumerRecord, Producer
from odradek.client.admin import NewTopic

SERVER = os.environ.get("ODRADEK_BOOTSTRAP", "127.0.0.1:9092")
ATTEMPTS = 3
paid: list[int] = []


def pay(value: bytes) -> None:
    """Process a record; raises when it cannot."""
    amount = int(value)
    if amount < 0:
        raise ValueError(f"a payment of {amount}")
    paid.append(amount)


def process(record: ConsumerRecord, producer: Producer) -> None:
    """Try a record a few times, then write it to the dead letters."""
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
    """Open a consumer that commits after the work, by hand."""
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
            consumer.commit()  # a dead letter is written by now, so its record is done, too
print("paid:", ", ".join(map(str, paid)))

with consumer_of("payments.dead", "support") as consumer:
    for _, record in zip(range(2), consumer, strict=False):
        headers = {name: (text or b"").decode() for name, text in record.headers}
        print(f"dead: {record.value!r} from {headers['origin']}, {headers['error']}")
