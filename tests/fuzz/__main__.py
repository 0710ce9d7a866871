"""Fuzz every place where bytes enter, guided by coverage: frames, messages, batches, logs and their small files.

    python -m tests.fuzz                                       # the list of targets
    python -m tests.fuzz run [TARGET ...] [--minutes 60]       # in turns of equal time; atheris, so Linux on x86-64
    python -m tests.fuzz keep TARGET FILE "what was wrong"     # a crash becomes a test
    python -m tests.fuzz try TARGET FILE                       # one input again, with its traceback

What libFuzzer finds stays in `--work` (`.cache/fuzz`), and the next run goes on from there. At the end of a target's turn, the
inputs that reach more code than the seeds do are kept in `tests/fuzz/corpus`, the smallest first. `make test` runs them.
The exit status is 0 if no input broke a rule, 1 if one did, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.fuzz.corpus import keep_crash, keep_finds, kept
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
INPUT_BYTES_MAX = 4096
INPUT_SECONDS_MAX = 20
MEMORY_MIB_MAX = 4096


def main() -> int:
    """Run the command that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command")
    run = commands.add_parser("run", help="fuzz targets in turns")
    run.add_argument("targets", nargs="*", metavar="TARGET")
    run.add_argument(
        "--minutes", type=float, default=60.0, help="the time for all targets together (default: 60)"
    )
    run.add_argument("--seed", type=int, default=0, help="the seed of libFuzzer; 0, the default, draws one")
    run.add_argument(
        "--work",
        type=Path,
        default=ROOT / ".cache" / "fuzz",
        help="a directory for the inputs found so far, and for crashes",
    )
    keep = commands.add_parser("keep", help="make an input a test")
    keep.add_argument("target", choices=TARGETS)
    keep.add_argument("file", type=Path)
    keep.add_argument("reason")
    again = commands.add_parser("try", help="run one input again")
    again.add_argument("target", choices=TARGETS)
    again.add_argument("file", type=Path)
    args = parser.parse_args()
    if args.command == "run":
        unknown = [name for name in args.targets if name not in TARGETS]
        if unknown:
            parser.error(f"no target is called {unknown[0]}: there are {', '.join(TARGETS)}")
        return fuzz(args.targets or list(TARGETS), args.minutes * 60, args.seed, args.work.resolve())
    if args.command == "keep":
        print("kept" if keep_crash(args.target, args.file.read_bytes(), args.reason) else "was kept before")
    elif args.command == "try":
        TARGETS[args.target].run(args.file.read_bytes())
        print("the input breaks no rule")
    else:
        for name, target in TARGETS.items():
            print(
                f"{name:12} {len(kept(name)):5} kept   {(sys.modules[target.run.__module__].__doc__ or '').splitlines()[0]}"
            )
    return 0


def fuzz(names: list[str], seconds: float, seed: int, work: Path) -> int:
    """Run libFuzzer on each target for an equal share of the time."""
    if importlib.util.find_spec("atheris") is None:
        print(
            "atheris is missing: `make install-dev` installs it on Linux on x86-64 with Python 3.11 to 3.13",
            file=sys.stderr,
        )
        return 2
    crashes = 0
    for name in names:
        crashes += _fuzz_one(name, max(1, round(seconds / len(names))), seed, work / name)
    return 1 if crashes else 0


def _fuzz_one(name: str, seconds: int, seed: int, work: Path) -> int:
    """Fuzz one target and keep its finds. Return the number of crashes."""
    found, seeds, crashes = (work / folder for folder in ("found", "seeds", "crashes"))
    shutil.rmtree(seeds, ignore_errors=True)
    for folder in (found, seeds, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    _write_all(seeds, TARGETS[name].seeds())
    _write_all(found, kept(name))
    before = set(crashes.iterdir())
    print(f"{name}: {seconds} s", flush=True)
    _libfuzzer(
        name,
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={INPUT_SECONDS_MAX}",
        f"-rss_limit_mb={MEMORY_MIB_MAX}",
        f"-artifact_prefix={crashes}/",
        "-print_final_stats=1",
        *([f"-seed={seed}"] if seed else []),
        str(found),
        str(seeds),
    )
    new = sorted(set(crashes.iterdir()) - before)
    for path in new:
        print(f'{name}: {path}\n  python -m tests.fuzz keep {name} {path} "what was wrong"', flush=True)
    print(f"{name}: {keep_finds(name, _beyond_seeds(name, found, seeds))} inputs kept", flush=True)
    return len(new)


def _beyond_seeds(name: str, found: Path, seeds: Path) -> list[bytes]:
    """Choose the inputs that together reach more code than the seeds, by libFuzzer's merge."""
    with tempfile.TemporaryDirectory(prefix="odradek-fuzz-") as folder:
        shutil.copytree(seeds, folder, dirs_exist_ok=True)
        before = {path.name for path in Path(folder).iterdir()}
        _libfuzzer(name, "-merge=1", f"-max_len={INPUT_BYTES_MAX}", folder, str(found))
        return [path.read_bytes() for path in Path(folder).iterdir() if path.name not in before]


def _libfuzzer(name: str, *options: str) -> None:
    """Run the driver in the repository's root, with libFuzzer's options."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh", prefix="odradek-fuzz-", delete=False) as file:
        launcher = Path(file.name)
        command = [sys.executable, "-m", "tests.fuzz.driver", name, str(launcher)]
        file.write(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    launcher.chmod(0o700)
    try:
        subprocess.run([launcher, *options], cwd=ROOT, env={**os.environ, "PYTHONPATH": _path()}, check=False)
    finally:
        launcher.unlink()


def _path() -> str:
    """Return the module search path for child processes: the repository, then the previous path."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def _write_all(folder: Path, inputs: Iterable[bytes]) -> None:
    """Write each input to a file named after its content."""
    for data in inputs:
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
