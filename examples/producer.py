"""Write records, and get the partition and offset of each.

    python examples/producer.py

Records of one key share a partition, so they stay in order. The program prints:

    roof 21.5 is at weather-0@0
    roof 22.0 is at weather-0@1
    yard 18.0 is at weather-1@0
    refused: MESSAGE_TOO_LARGE
"""

import os

from odradek import Admin, KafkaError, Producer
from odradek.client.admin import NewTopic

SERVER = os.environ.get("ODRADEK_BOOTSTRAP", "127.0.0.1:9092")
READINGS = [("roof", 21.5), ("roof", 22.0), ("yard", 18.0)]

with Admin(bootstrap_servers=SERVER) as admin:
    admin.create_topics([NewTopic("weather", partitions=2)])

with Producer(bootstrap_servers=SERVER, compression_type="lz4", linger_ms=5) as producer:
    # `send` returns at once. Batches are sent in the background. If the network loses a batch, it is sent again,
    # without duplicates.
    sent = [producer.send("weather", b"%.1f" % degrees, key=place.encode()) for place, degrees in READINGS]

    # A future's result has the partition and offset of its record, once all in-sync replicas have it (acks=all).
    for (place, degrees), future in zip(READINGS, sent, strict=True):
        where = future.result()
        print(f"{place} {degrees} is at {where.topic}-{where.partition}@{where.offset}")

    # An error concerns only one record; the producer can continue.
    try:
        producer.send("weather", bytes(2_000_000), key=b"yard")
    except KafkaError as error:
        print("refused:", error.code.name)
