"""Send the lines of a log file to a topic, and count the errors in them.

    python examples/log_pipeline.py [FILE]

Lines of one host keep their order, because the host is the key. The broker deletes old segments (`retention.ms`).
Without a file, the program sends six sample lines. It prints:

    6 lines shipped, 0 lost
    web-1: 1 errors of 3 lines
    web-2: 2 errors of 3 lines
"""

import os
import sys
from collections import Counter
from pathlib import Path

from odradek import Admin, Consumer, Delivered, Producer
from odradek.client.admin import NewTopic

SERVER = os.environ.get("ODRADEK_BOOTSTRAP", "127.0.0.1:9092")
SAMPLE = """\
web-1 200 GET /
web-2 500 GET /cart
web-1 404 GET /favicon.ico
web-2 200 GET /
web-1 503 GET /cart
web-2 502 GET /cart
"""
lines = (Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else SAMPLE).splitlines()

with Admin(bootstrap_servers=SERVER) as admin:
    week = {"retention.ms": str(7 * 24 * 3600 * 1000)}
    admin.create_topics([NewTopic("access-log", 2, configs=week)])

outcomes: Counter[bool] = Counter()


def count_outcome(error: Exception | None, where: Delivered) -> None:
    """Count a line as written or lost. Called by the producer's thread once the outcome is known."""
    outcomes[error is None] += 1


# A line may wait for 50 ms, so that batches are large and compress well. When memory is short, `send` waits
# instead of dropping lines.
with Producer(bootstrap_servers=SERVER, compression_type="zstd", linger_ms=50) as producer:
    for line in lines:
        host = line.partition(" ")[0]
        producer.send("access-log", line.encode(), key=host.encode(), on_delivery=count_outcome)
print(f"{outcomes[True]} lines shipped, {outcomes[False]} lost")

seen: Counter[str] = Counter()
errors: Counter[str] = Counter()
with Consumer(bootstrap_servers=SERVER, group_id="watchdog", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["access-log"])
    while seen.total() < len(lines):
        for record in consumer.poll():
            host, status, _ = record.value.decode().split(" ", 2)
            seen[host] += 1
            errors[host] += status >= "500"
for host, count in sorted(seen.items()):
    print(f"{host}: {errors[host]} errors of {count} lines")
