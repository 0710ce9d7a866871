"""`python -m sim.campaign.worker`: runs what it is told on its standard input, a JSON line for each, until that ends.

A job is `{"seed", "options", "commit"}`, and with `"timeline"` the name of a file for `sim.campaign.observing`. The answer
is a line that `results.line_of` makes. What the nodes print goes to standard error.
"""

from __future__ import annotations

import json
import sys

from sim.campaign.observing import write_timeline
from sim.campaign.results import Outcome, line_of
from sim.options import RunOptions
from sim.run import run


def main() -> None:
    """Serve jobs."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        job = json.loads(line)
        options = RunOptions.from_json(job["options"])
        if "timeline" in job:
            result = write_timeline(job["seed"], options, job["commit"], job["timeline"])
        else:
            result = run(job["seed"], options)
        answers.write(line_of(Outcome.of(result, job["commit"])))
        answers.flush()


if __name__ == "__main__":
    main()
