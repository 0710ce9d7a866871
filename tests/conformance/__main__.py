"""Send the corpus to a server, and record or compare its answers.

python -m tests.conformance record [BOOTSTRAP [API ...]]    write down what Apache Kafka answers python -m
tests.conformance compare BOOTSTRAP [API ...]     show where a server differs from the recording python -m
tests.conformance document                        write docs/compatibility.md

Without a bootstrap address, `record` starts an Apache Kafka (Java and its jars: `testkit/kafka_server.py`).
"""

from __future__ import annotations

import os
import sys

from testkit.kafka_server import KafkaUnavailable, kafka_server
from tests.conformance import document
from tests.conformance.asking.talk import wait_until_ready
from tests.conformance.comparison import differences, load, save
from tests.conformance.corpus import APIS, CORPUS, cases_of, hold
from tests.conformance.seals import seal
from tests.conformance.servers import SETTINGS, Place


def record(bootstrap: str, apis: list[str]) -> None:
    """Record the answers of an Apache Kafka."""
    wait_until_ready(bootstrap)
    tag = os.urandom(3).hex()
    for api in apis or APIS:
        held = hold(bootstrap, tag, cases_of(api))
        save(api, held.answers)
        seal(api)
        print(f"{api}: {len(held.answers)} cases, {sum(map(len, held.answers.values()))} answers")


def compare(bootstrap: str, chosen: list[str]) -> int:
    """Print every difference and return their number. `chosen` names APIs or single cases."""
    wait_until_ready(bootstrap)
    tag = os.urandom(3).hex()
    held_total, found = 0, 0
    for api in APIS:
        recorded = load(api)
        wanted = [name for name in cases_of(api) if not chosen or api in chosen or name in chosen]
        for name, given in hold(bootstrap, tag, wanted).answers.items():
            for line in differences(recorded[name], given):
                print(f"{name}: {line}")
                found += 1
        held_total += len(wanted)
    print(f"{held_total} of {len(CORPUS)} cases, {found} differences")
    return found


def main(arguments: list[str]) -> int:
    """Record, compare, or write the page, as the command line asks."""
    match arguments:
        case ["record"]:
            try:
                place = Place.of(SETTINGS)
                with kafka_server(port=place.port, settings=place.settings) as server:
                    record(server.bootstrap, [])
            except KafkaUnavailable as reason:
                print(f"Apache Kafka is unavailable: {reason}", file=sys.stderr)
                return 3
            return 0
        case ["record", bootstrap, *apis]:
            record(bootstrap, apis)
            return 0
        case ["compare", bootstrap, *chosen]:
            return bool(compare(bootstrap, chosen))
        case ["document"]:
            document.PATH.write_text(document.render())
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
