"""Hold the corpus against servers.

python -m tests.conformance record BOOTSTRAP          write down what Apache Kafka answers
python -m tests.conformance compare BOOTSTRAP [CASE]  show where a server differs from what is written down
"""

from __future__ import annotations

import os
import sys

from tests.conformance.comparison import RECORDING, differences, load, save
from tests.conformance.corpus import hold


def main(arguments: list[str]) -> int:
    """Record or compare."""
    command, bootstrap, *names = arguments
    answers = hold(bootstrap, os.urandom(3).hex(), names)
    if command == "record":
        save({**(load() if names and RECORDING.exists() else {}), **answers})
        return 0
    recorded = load()
    found = 0
    for name, given in answers.items():
        for line in differences(recorded[name], given):
            print(f"{name}: {line}")
            found += 1
    print(f"{len(answers)} cases, {found} differences")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
