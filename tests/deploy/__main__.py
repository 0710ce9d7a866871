"""Run the life of a cluster on booted hosts, or only boot the hosts. Needs root.

`python -m tests.deploy [whole|bad-day|recover|upgrades|short|faces|hosts|prepare]`: `hosts` boots four hosts, writes an
inventory, and opens a shell from which they can be reached. They end with the shell. `prepare` only installs the
requirements for booting hosts. `--debian 13` names the Debian of the hosts. If it is given twice, the hosts take turns.
Status 2: hosts cannot be booted here. Status 3: the time was up.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

from tests.deploy.hosts import CannotBoot, sweep, work_directory
from tests.deploy.needs import (
    CACHE,
    DEBIAN,
    DEBIANS,
    ROOT,
    SANDBOX,
    CannotPrepare,
    Debian,
    prepare,
    what_is_missing,
)
from tests.deploy.releases import CannotBuild, build_releases, make_key

CANNOT, TIME_UP = 2, 3
_TIMED = ("whole", "bad-day", "recover", "upgrades", "short", "faces")


class TimeUp(Exception):
    """Raised when the time given by `--seconds` is over."""


def _on_alarm(number: int, frame: FrameType | None) -> None:
    raise TimeUp


def main() -> int:
    """Run the form that the command line names. This is called once outside of the sandbox, and once more inside."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "form",
        nargs="?",
        choices=(*_TIMED, "hosts", "prepare"),
        default="whole",
    )
    parser.add_argument("--seconds", type=int, default=3600, help="give up after so long (default: an hour)")
    parser.add_argument(
        "--only", default="", help="steps by the names of their functions, with commas (birth always)"
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="go on after a step that fails; the report names it, and the status is 1",
    )
    parser.add_argument(
        "--debian",
        type=int,
        action="append",
        choices=DEBIANS,
        help=f"the Debian of the hosts (default: {DEBIAN.number}); given twice, hosts take turns",
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    debians = tuple(DEBIANS[each] for each in args.debian or [DEBIAN.number])
    if args.inside is not None:
        from tests.deploy.forms import live

        try:
            only = [name for name in args.only.split(",") if name]
            return live(args.inside, args.form, only, debians, keep_going=args.keep_going)
        except (CannotBoot, CannotBuild) as error:
            print(f"hosts cannot be booted: {error}", file=sys.stderr)
            return CANNOT
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    signal.alarm(args.seconds if args.form in _TIMED else 0)
    try:
        if args.form == "short":
            # The short form installs nothing, since `make test` has prepared the machine already, or could not.
            missing = what_is_missing(*debians, with_tree=True)
            if missing is not None:
                raise CannotPrepare(missing)
        else:
            prepare(args.seconds, *debians)
        if args.form == "prepare":
            return 0
        sweep()
        return _life(args, debians)
    except CannotPrepare as error:
        print(f"hosts cannot be booted: {error}", file=sys.stderr)
        return CANNOT
    except TimeUp:
        print(f"not done after {args.seconds} s", file=sys.stderr)
        return TIME_UP
    finally:
        signal.alarm(0)
        sweep()


def _life(args: argparse.Namespace, debians: tuple[Debian, ...]) -> int:
    """Run the form in the sandbox. Meanwhile build the releases outside of it, where the network is."""
    work = work_directory()
    make_key(work / "releases")
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
        *(["--keep-going"] if args.keep_going else []),
        *(word for each in debians for word in ("--debian", str(each.number))),
    ]
    status = TIME_UP
    building = threading.Thread(
        target=build_releases, args=(work / "releases", args.form, [each.python for each in debians])
    )
    try:
        building.start()
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
    finally:
        building.join()
        if status not in (0, CANNOT) and (work / "playbooks.log").exists():
            kept = CACHE / "failed.log"
            kept.write_bytes((work / "playbooks.log").read_bytes())
            print(f"what the playbooks said: {kept}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
