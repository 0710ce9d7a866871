"""`python -m sim.campaign.worker`: runs the jobs on its standard input, one JSON line each, until the input ends.

A job is `{"seed", "options", "commit"}`. `"timeline"` is the name of an output file for `sim.campaign.observing`,
`"coverage"` is the name of an output file for `sim.campaign.coverage`. With `"parts"` the seed's schedules of single
parts (`sim.alone.parts`) are run after the cluster, unless the run has failed. The answer is a line that
`results.line_of` makes. The nodes' output goes to standard error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from odradek.named_states import counting
from sim.alone.parts import run_schedules
from sim.campaign.coverage import covered_run
from sim.campaign.observing import write_timeline
from sim.campaign.results import Outcome, line_of
from sim.options import RunOptions
from sim.run import run


def main() -> None:
    """Run jobs from standard input until it ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        job = json.loads(line)
        options = RunOptions.from_json(job["options"])
        if "timeline" in job:
            result = write_timeline(job["seed"], options, job["commit"], job["timeline"])
        elif "coverage" in job:
            result, covered = covered_run(job["seed"], options)
            Path(job["coverage"]).write_text(json.dumps(covered.to_json()))
        else:
            result = run(job["seed"], options)
        outcome = Outcome.of(result, job["commit"])
        if "parts" in job and outcome.verdict == "ok":
            states: dict[str, int] = {}
            with counting(states):
                failed = run_schedules(job["seed"])
            outcome = outcome.with_schedules(failed, dict(sorted(states.items())))
        answers.write(line_of(outcome))
        answers.flush()


if __name__ == "__main__":
    main()
