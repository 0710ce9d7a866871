"""`python -m tests.deploy [whole|short|hosts]`: the life of a cluster on booted hosts, or just the hosts; for root.

`hosts` boots four of them, writes an inventory, and opens a shell from which they can be reached; they end with it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.deploy.hosts import sweep, work_directory
from tests.deploy.needs import CACHE, ROOT, SANDBOX, make_tree, what_is_missing
from tests.deploy.releases import CannotBuild, build_releases


def main() -> int:
    """Entry point; called once outside, and once more inside the sandbox."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("form", nargs="?", choices=("whole", "short", "hosts"), default="whole")
    parser.add_argument(
        "--only", default="", help="steps by the names of their functions, with commas (birth always)"
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside is not None:
        from tests.deploy.life import live

        return live(args.inside, args.form, [name for name in args.only.split(",") if name])
    missing = what_is_missing(with_tree=args.form == "short")
    if missing:
        print(f"hosts cannot be booted: {missing}", file=sys.stderr)
        return 2
    sweep()
    make_tree()
    work = work_directory()
    try:
        build_releases(work / "releases", whole=args.form != "short")
    except CannotBuild as error:
        sweep()
        print(f"no release can be built: {error}", file=sys.stderr)
        return 2
    command = [
        *SANDBOX,
        sys.executable,
        "-m",
        "tests.deploy",
        args.form,
        "--inside",
        str(work),
        "--only",
        args.only,
    ]
    try:
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status:
            kept = CACHE / f"failed-{os.getpid()}.log"
            if (work / "playbooks.log").exists():
                kept.write_bytes((work / "playbooks.log").read_bytes())
                print(f"what the playbooks said: {kept}", file=sys.stderr)
        return status
    finally:
        sweep()


if __name__ == "__main__":
    sys.exit(main())
