"""Build a release: `make release`.

    python -m deploy.make_release                        of this tree, under the version of pyproject.toml
    python -m deploy.make_release --version 0.3.1        of this tree, under another version
    python -m deploy.make_release --from 0.3.0           the release 0.3.0, from the sources of its commit
    python -m deploy.make_release --from 1a2b3c4 --version 0.3.1
    python -m deploy.make_release --python 3.11 --python 3.13      for hosts with either Python

`--from` takes a version of CHANGELOG.md, a tag or a commit. The sources of that commit are cloned, and the release is
built by the program in these sources. Programs before 0.3.0 build only the archive for hosts. Up to 0.3.0, an archive is
always for the Python that runs the program. So `--python` is refused for another one, and the message names the command
that builds the release.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from deploy.build_release import (
    HERE,
    ROOT,
    BadArgument,
    WheelsUnavailable,
    build,
    checked_pythons,
    version_of,
)
from deploy.released import UnknownRelease, commit_named

__all__ = ["main", "release_from"]

UNAVAILABLE = 2
"""The exit status if the wheels of dependencies cannot be fetched."""


def release_from(
    name: str, version: str | None, out: Path, key: Path | None = None, pythons: Sequence[str] = ()
) -> int:
    """Clone the sources of a version, tag or commit, and run their program to build the release. Return its exit
    status.

    Raises `UnknownRelease`, and `BadArgument` for Pythons for which that program cannot choose wheels.
    """
    pythons = checked_pythons(pythons)
    commit, released = commit_named(name, ROOT)
    if released and version not in (None, released):
        raise UnknownRelease(f"{name} is the release {released}, and has no other version")
    version = released or version
    with tempfile.TemporaryDirectory() as directory:
        clone = Path(directory, "sources")
        git = ["git", "-C", str(clone)]
        subprocess.run(["git", "clone", "-q", "--no-checkout", str(ROOT), str(clone)], check=True)
        subprocess.run([*git, "checkout", "-q", "--detach", commit], check=True)
        if released:
            # Set the tag, because the wheel contains the tag, but the clone may lack it.
            subprocess.run(
                [*git, "tag", "--force", f"v{released}", commit], check=True, stdout=subprocess.PIPE
            )
        (clone / ".cache").mkdir(exist_ok=True)
        if (ROOT / ".cache" / "ansible").exists():
            (clone / ".cache" / "ansible").symlink_to(ROOT / ".cache" / "ansible")
        program = "make_release" if (clone / "deploy" / "make_release.py").exists() else "build_release"
        command = [sys.executable, "-m", f"deploy.{program}", "--out", str(out.resolve())]
        command += ["--version", version] if version else []
        command += ["--sign", str(key.resolve())] if key else []
        if _has_option(command[:3], clone, "--python"):
            command += [word for each in pythons for word in ("--python", each)]
        elif pythons != [HERE]:
            wanted = f"make release FROM={name} PYTHON=/path/to/python{pythons[-1]}"
            several = " An archive for several Pythons needs a newer release." if len(pythons) > 1 else ""
            raise BadArgument(
                f"the program of {name} takes no --python. It chooses wheels for the Python that runs it: {wanted}.{several}"
            )
        return subprocess.run(command, cwd=clone, check=False).returncode


def _has_option(command: Sequence[str], directory: Path, option: str) -> bool:
    """True if the help of a program, run in a directory, lists an option. The program may be older than this one."""
    done = subprocess.run([*command, "--help"], cwd=directory, check=True, stdout=subprocess.PIPE, text=True)
    return re.search(rf"(?m)^  {option}\b", done.stdout) is not None


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="make release"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist" / "releases", help="the directory of the files"
    )
    parser.add_argument("--version", help="the version, in place of the version in pyproject.toml")
    parser.add_argument(
        "--from", dest="origin", metavar="NAME", help="a version of CHANGELOG.md, a tag or a commit"
    )
    parser.add_argument("--sign", type=Path, metavar="KEY", help="sign by this key, as ssh-keygen makes them")
    parser.add_argument(
        "--python",
        dest="pythons",
        action="append",
        default=[],
        metavar="3.13",
        help="the Python of the hosts; may be given several times (default: the Python that runs this)",
    )
    return parser.parse_args()


def main() -> int:
    """Build a release from the command line; return the exit status."""
    args = _parse()
    try:
        if args.origin:
            return release_from(args.origin, args.version, args.out, args.sign, args.pythons)
        name = version_of(args.version)
        # Import this only now: it needs development libraries, which the refusal of a wrong version does not need.
        from deploy.release_files import GALAXY, write_beside

        if not GALAXY.exists():
            raise BadArgument("ansible-galaxy builds the collection: run make deploy-tools")
        archive = build(args.out, name, args.sign, args.pythons)
        for path in [archive, *write_beside(archive, name, args.sign)]:
            print(path)
    except (BadArgument, UnknownRelease) as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    except WheelsUnavailable as error:
        print(f"no release: {error}", file=sys.stderr)
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
