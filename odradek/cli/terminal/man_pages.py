"""`odradek generate man DIR`: manual pages of all commands, from the parsers of the command line.

There is a page for `odradek` and one for each group of commands, such as odradek-topic(1). Pages have no date, so the same
release always makes the same files.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from odradek.cli.failure import CliError
from odradek.cli.output import counted, print_json, say
from odradek.cli.parsing import Groups, add_command

__all__ = ["add_man", "pages"]

_STATUS = (
    ("0", "The command has done its work."),
    ("1", "It has failed; one line on standard error says why, and what to do."),
    ("2", "The command line was wrong."),
    ("3", "The cluster has a problem (cluster health, cluster status, cluster doctor)."),
    ("130", "It was interrupted."),
)
_ENVIRONMENT = (
    (
        "ODRADEK_BOOTSTRAP",
        "The addresses of some brokers, HOST:PORT,..., if --bootstrap-server is not given.",
    ),
    ("ODRADEK_COMMAND_CONFIG", "A properties file with keys of clients, if --command-config is not given."),
    ("NO_COLOR", "If it is set, output has no colours."),
)


def add_man(commands: Groups) -> None:
    """Add the command `man` to the group `generate`."""
    man = add_command(commands, "man", _man, "write the manual pages of all commands to a directory")
    man.add_argument("directory", metavar="DIR", type=Path, help="the directory, such as man1 of a MANPATH")


def _man(args: argparse.Namespace) -> int:
    from odradek.version import version_line

    version = version_line().partition(" (")[0]
    written = []
    try:
        args.directory.mkdir(parents=True, exist_ok=True)
        for name, text in pages(args.build(), version):
            path = args.directory / name
            path.write_text(text, encoding="utf-8")
            written.append(str(path))
    except OSError as error:
        raise CliError(f"cannot write {error.filename or args.directory}: {error.strerror}") from None
    if args.json:
        print_json({"pages": written})
    else:
        say(f"{counted(len(written), 'page')} written to {args.directory}")
    return 0


def pages(parser: argparse.ArgumentParser, version: str) -> Iterator[tuple[str, str]]:
    """Make the pages of a parser: pairs of a file's name and its text in the language of man(7)."""
    groups = _commands(parser)
    names = [f"odradek-{name}" for name, _, _ in groups]
    body = [".SH COMMANDS"]
    for name, _, text in groups:
        body += [".TP", f".BR odradek-{_roff(name)} (1)", _sentence(text)]
    yield "odradek.1", _page("odradek", parser.description or "", version, [*_synopsis(parser), *body], names)
    for name, sub, text in groups:
        title = f"odradek-{name}"
        leaves = list(_leaves(sub))
        lines = [".SH SYNOPSIS"]
        for leaf in leaves:
            lines += [f".B {_roff(leaf.prog)}", _roff(_usage(leaf)), ".br"]
        for leaf in leaves:
            lines += [
                f'.SH "{_roff(leaf.prog.upper())}"',
                _sentence(leaf.description or text),
                *_arguments(leaf),
            ]
        yield f"{title}.1", _page(title, text, version, lines, ["odradek"])


def _page(title: str, summary: str, version: str, body: Sequence[str], others: Sequence[str]) -> str:
    short = summary.rstrip(".")
    lines = [
        f'.TH "{_roff(title.upper())}" 1 "" "{_roff(version)}" "Commands of Odradek"',
        ".SH NAME",
        f"{_roff(title)} \\- {_roff(short[:1].lower() + short[1:])}",
        *body,
        ".SH EXIT STATUS",
        *_listed(_STATUS),
        ".SH ENVIRONMENT",
        *_listed(_ENVIRONMENT),
        ".SH SEE ALSO",
        ",\n".join(f".BR {_roff(name)} (1)" for name in others).replace(",\n", "\n"),
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _listed(pairs: Sequence[tuple[str, str]]) -> list[str]:
    lines = []
    for name, text in pairs:
        lines += [".TP", f".B {_roff(name)}", _sentence(text)]
    return lines


def _synopsis(parser: argparse.ArgumentParser) -> list[str]:
    return [".SH SYNOPSIS", f".B {_roff(parser.prog)}", _roff(_usage(parser))]


def _commands(parser: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser, str]]:
    """List the commands of a parser that have a parser of their own, each with its line in the help."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {each.dest: each.help or "" for each in action._choices_actions}
            found += [(name, sub, texts.get(name, "")) for name, sub in action.choices.items()]
    return found


def _leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of all commands of a group; the group itself if it is a command."""
    below = _commands(parser)
    if not below:
        yield parser
    for _, sub, _ in below:
        yield from _leaves(sub)


def _usage(parser: argparse.ArgumentParser) -> str:
    text = " ".join(parser.format_usage().split())
    return text.removeprefix("usage: ").removeprefix(parser.prog).strip()


def _arguments(parser: argparse.ArgumentParser) -> list[str]:
    lines: list[str] = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        metavar = action.metavar if isinstance(action.metavar, str) else action.dest
        if action.choices is not None:
            metavar = "|".join(map(str, action.choices))
        value = "" if action.nargs == 0 else f" {metavar}"
        if action.nargs == "?" and action.option_strings:
            value = f" [{metavar}]"
        name = ", ".join(action.option_strings) + value if action.option_strings else metavar
        text = (action.help or "").replace("%(prog)s", parser.prog).replace("%%", "%")
        lines += [".TP", f".B {_roff(name)}", _sentence(text) or "\\&"]
    return lines


def _sentence(text: str) -> str:
    """Write a help text as a sentence of a page."""
    if not text:
        return ""
    shown = " ".join(text.split())
    return _roff(shown[:1].upper() + shown[1:] + ("" if shown.endswith(".") else "."))


def _roff(text: str) -> str:
    """Escape what man(7) would take for a request: backslashes, hyphens, a point or an apostrophe at the beginning."""
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{safe}" if safe[:1] in (".", "'") else safe
