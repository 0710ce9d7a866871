"""Compares how our producer and Java's spread records without a key over partitions, at three rates, on one of our
nodes.

Both change to another random partition after a number of bytes (KIP-794), so the shares differ at random. If a
partition's share is far from the even share, the producer has a fault. So the figures are the largest and the smallest
share, divided by the even share. Chance alone makes them differ from 1 by about the square root of partitions /
batches, which is printed, too.

    python -m bench.clients.spreading [--partitions 6] [--rates 500,5000,0] [--seconds 15]     # 0: as fast as it goes
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

from odradek import Admin, Consumer, Producer
from odradek.client.admin import NewTopic
from testkit.kafka_server import run_tool
from testkit.odradek_server import odradek_server

VALUE_BYTES = 1024
BATCH_BYTES = 16_384
LINGER_MS = 5
UNBOUNDED_RECORDS = 60_000
JAVA = "org.apache.kafka.tools.ProducerPerformance"


def by_java(bootstrap: str, topic: str, records: int, rate: int) -> None:
    """Send records with the performance tool of Apache Kafka."""
    run_tool(
        JAVA,
        *("--topic", topic, "--num-records", str(records), "--record-size", str(VALUE_BYTES)),
        *("--throughput", str(rate or -1), "--producer-props", f"bootstrap.servers={bootstrap}"),
        *(f"batch.size={BATCH_BYTES}", f"linger.ms={LINGER_MS}"),
        timeout_seconds=600,
    )


def by_us(bootstrap: str, topic: str, records: int, rate: int) -> None:
    """Send records with our producer, at the same pace as the performance tool."""
    value = bytes(VALUE_BYTES)
    with Producer(
        bootstrap_servers=bootstrap, batch_size=BATCH_BYTES, linger_ms=LINGER_MS, retries=2**31 - 1
    ) as producer:
        began = time.perf_counter()
        for number in range(records):
            producer.send(topic, value)
            ahead = number / rate - (time.perf_counter() - began) if rate else 0.0
            if ahead > 0:
                time.sleep(ahead)


def shares(bootstrap: str, topic: str, partitions: int) -> list[float]:
    """Return each partition's number of records, divided by the even share."""
    keys = [(topic, partition) for partition in range(partitions)]
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        ends = list(consumer.end_offsets(keys).values())
    return [end * partitions / sum(ends) for end in ends]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.clients.spreading", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--rates", type=lambda text: [*map(int, text.split(","))], default=[500, 5000, 0])
    parser.add_argument("--seconds", type=int, default=15, help="how long to send at each rate (default: 15)")
    options = parser.parse_args()
    producers: dict[str, Callable[[str, str, int, int], None]] = {"java": by_java, "odradek": by_us}
    print(f"{'records/s':>10} {'producer':10} {'records':>8} {'largest':>8} {'smallest':>9} {'chance':>7}")
    with odradek_server() as server, Admin(bootstrap_servers=server.bootstrap) as admin:
        for rate in options.rates:
            records = rate * options.seconds or UNBOUNDED_RECORDS
            for name, send in producers.items():
                topic = f"{name}-{rate}"
                (made,) = admin.create_topics([NewTopic(topic, options.partitions, 1)])
                assert made.error is None, made.error
                send(server.bootstrap, topic, records, rate)
                found = shares(server.bootstrap, topic, options.partitions)
                chance = math.sqrt(options.partitions * BATCH_BYTES / (records * VALUE_BYTES))
                print(
                    f"{rate or 'unbounded':>10} {name:10} {records:8} {max(found):8.2f} {min(found):9.2f} {chance:7.2f}"
                )


if __name__ == "__main__":
    main()
