"""The entry point of the command line: finds the module of a group of commands, builds its parser, returns the
exit code. A call is `odradek GROUP COMMAND ...`.

Only the module of the requested group is imported. This module and the top level of each group's module
import nothing heavy, such as trio or cattrs (tests/cli/test_import_budget.py). A command imports the other
modules when it runs, so every command starts quickly.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from odradek.cli.failure import FAILURE, CliError
from odradek.cli.parsing import Parser, option_hint
from odradek.cli.streams.standard_streams import complain, give_up, output_failure, prepare_streams

__all__ = ["main"]

INTERRUPTED = 130
GROUPS = (
    "dev",
    "server",
    "storage",
    "topic",
    "produce",
    "consume",
    "group",
    "txn",
    "config",
    "acl",
    "user",
    "token",
    "quota",
    "client",
    "cluster",
    "broker",
    "partition",
    "quorum",
    "metadata",
    "disk",
    "log",
    "top",
    "console",
    "completion",
    "generate",
)
"""The command groups in the order of the help. The `register` of a group's module adds the group to the
parser.
"""
_HOMES = {
    "metadata": "odradek.cli.recovering.metadata",
    "top": "odradek.cli.terminal.top.top",
    "completion": "odradek.cli.terminal.completion",
}
"""The command groups whose module is outside the package `commands`, each with the name of that module."""
PROGRAMS = {
    "mirror": (
        "odradek.spark.pipelines.mirror.command",
        "copy topics of one cluster into another, exactly once",
    ),
    "spark": ("odradek.spark.__main__", "run jobs on Spark, and tools for queries that write exactly once"),
}
"""Commands with a parser of their own, by name. Each value has two parts: the module whose `main` gets all
words after the name, and the command's line in the help.
"""


class _Version(argparse.Action):
    """The option --version, which looks the version up only when it is used."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from odradek.cli.output import say
        from odradek.version import version_line

        say(version_line())
        parser.exit()


def module_of(group: str) -> str:
    """Return the name of the module whose `register` adds this group of commands."""
    return _HOMES.get(group, f"odradek.cli.commands.{group}")


def build_parser(groups: Sequence[str] = GROUPS) -> argparse.ArgumentParser:
    """Build the parser of the command line with these groups of commands."""
    parser = Parser(
        prog="odradek",
        description="A distributed commit log that speaks Kafka's protocol.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print version and commit, and exit")
    # `generate` writes pages of all commands.
    parser.set_defaults(build=build_parser)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for group in groups:
        import_module(module_of(group)).register(commands)
    if groups is GROUPS:
        for name, (_, about) in PROGRAMS.items():
            commands.add_parser(name, help=about)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for a failure, 2 for wrong usage, 130 when interrupted."""
    prepare_streams()
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as stop:
        from odradek.cli.streams.ending import Ended, die_of

        if isinstance(stop, Ended):
            die_of(stop)
        return INTERRUPTED
    except BrokenPipeError:
        # The program that reads our output has ended (`| head`).
        give_up(sys.stdout)
        return FAILURE
    except OSError as error:
        # Each command handles the errors of the files that it opens. So an error that arrives here comes from
        # writing to standard output.
        give_up(sys.stdout)
        complain(output_failure(error))
        return FAILURE


def _run(argv: Sequence[str] | None) -> int:
    words = sys.argv[1:] if argv is None else argv
    try:
        if words and words[0] == "__complete":
            return _complete(words[1:])
        if words and words[0] in PROGRAMS:
            return _run_program(words[0], words[1:])
        parser = build_parser([words[0]] if words and words[0] in GROUPS else GROUPS)
        args, unknown = parser.parse_known_args(words)
        if unknown:
            hint = option_hint(args.parser, unknown)
            noun = "option" if unknown[0].startswith("-") else "argument"
            args.parser.error(f"the {noun} {' '.join(unknown)} does not exist{hint}")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else FAILURE
    except CliError as error:
        complain(str(error))
        return error.exit_code
    _keep_client_log_off_the_terminal()
    try:
        code: int = args.run(args)
        return code
    except CliError as error:
        sys.stdout.flush()
        complain(str(error))
        return error.exit_code


def _complete(words: Sequence[str]) -> int:
    """Print the words that a shell may complete to. A failure prints nothing, since it would disturb the user's line."""
    from odradek.cli.terminal.completion import answer

    def build(group: str | None) -> argparse.ArgumentParser:
        if group is None:
            return build_parser()
        if group not in GROUPS:
            raise KeyError(group)
        return build_parser([group])

    return answer(words, build)


def _run_program(name: str, words: Sequence[str]) -> int:
    """Run the command `name` of `PROGRAMS` and return its exit code. Raises `CliError` if a package of the
    extra `spark` is missing.
    """
    _keep_client_log_off_the_terminal()
    try:
        code: int = import_module(PROGRAMS[name][0]).main(words)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("numpy", "pandas", "pyarrow", "pyspark"):
            raise
        raise CliError(
            f"the command odradek {name} needs {error.name}: pip install 'odradek[spark]'"
        ) from error
    return code


def _keep_client_log_off_the_terminal() -> None:
    """Discard the client's log, because the command itself reports errors in one sentence."""
    import logging

    logging.getLogger("odradek.client").addHandler(logging.NullHandler())


if __name__ == "__main__":
    sys.exit(main())
