"""Read, work on several records at a time, and write: an async pipeline on trio.

    python examples/trio_pipeline.py

A memory channel passes records to four workers. Offsets are committed when all records of a poll are written, so a
crash repeats some records and loses none. The program prints:

    20 pages fetched by 4 workers
    the first: b'page-00 has 7 letters'
"""

import os

import trio

from odradek import Consumer, ConsumerRecord, Producer
from odradek.trio import open_consumer, open_producer

SERVER = os.environ.get("ODRADEK_BOOTSTRAP", "127.0.0.1:9092")
COUNT = 20
Pages = trio.MemoryReceiveChannel[ConsumerRecord]


async def pipeline() -> None:
    """Run the reader and the workers until all pages are fetched."""
    busy: set[str] = set()
    async with (
        open_producer(bootstrap_servers=SERVER) as producer,
        open_consumer(
            bootstrap_servers=SERVER,
            group_id="crawler",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):

        async def work(name: str, pages: Pages) -> None:
            async with pages:
                async for record in pages:
                    busy.add(name)
                    await trio.sleep(0.01)  # stands for slow work, such as a download or a query
                    text = b"%s has %d letters" % (record.value, len(record.value))
                    await producer.send("letters", text, key=record.value)

        consumer.subscribe(["pages"])
        done = 0
        while done < COUNT:
            records = await consumer.poll()
            async with trio.open_nursery() as nursery:
                give, take = trio.open_memory_channel[ConsumerRecord](0)
                async with give, take:
                    for number in range(4):
                        nursery.start_soon(work, f"worker {number}", take.clone())
                    for record in records:
                        await give.send(record)
            await producer.flush()
            await consumer.commit()
            done += len(records)
    print(f"{done} pages fetched by {len(busy)} workers")


with Producer(bootstrap_servers=SERVER) as source:
    for page in range(COUNT):
        source.send("pages", b"page-%02d" % page)
trio.run(pipeline)

with Consumer(bootstrap_servers=SERVER, group_id="reader", auto_offset_reset="earliest") as reader:
    reader.subscribe(["letters"])
    letters: list[bytes] = []
    while len(letters) < COUNT:
        letters += [record.value for record in reader.poll()]
    print("the first:", min(letters))
