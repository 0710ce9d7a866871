"""`odradek completion bash|zsh|fish`: a script for the shell, and the words that the script asks for.

The script runs `odradek __complete SHELL WORD...` at each press of the key. Commands and options come from the parsers of
the command line, so they are never out of date. Names of topics, groups and brokers come from the cluster, which has
`_ASK_SECONDS` to answer. After any failure nothing is printed.

The answer has one candidate for each line: the word, a tab, and its explanation. The line `:files` means that the
shell should offer files. bash gets only words that it need not quote.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from odradek.cli.output import print_json
from odradek.cli.parsing import add_command

if TYPE_CHECKING:
    from odradek.cli.parsing import Groups
    from odradek.client.shells.blocking import Client

__all__ = ["Build", "answer", "candidates", "register"]

Build = Callable[[str | None], argparse.ArgumentParser]
"""A function that builds the parser: of one group of commands, or with None of the whole command line."""

_ASK_SECONDS = 1.0
_END_SECONDS = 1.5
"""The process ends after this time, even if the system still looks up a name."""
_CANDIDATES_MAX = 500
_FILES = ":files"
_FILE_METAVARS = frozenset(("FILE", "PATH", "DIR", "FILE|DIR", "CONFIG"))
_TOPIC = re.compile(r"TOPIC\b")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9._:/=,@%+-]*")
"""A word without any character that bash gives a meaning to. bash inserts candidates as they are, without quoting them, and a
stranger may have named a group `$(command)`. zsh and fish quote what they insert.
"""

_BASH = r"""# Completion of odradek for bash. In ~/.bashrc: source <(odradek completion bash)
_odradek_complete() {
    local line current=$2
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == ":files" ]]; then
            compopt -o filenames
            while IFS= read -r line; do
                COMPREPLY+=("$line")
            done < <(compgen -f -- "$current")
            return
        fi
        COMPREPLY+=("${line%%$'\t'*}")
    done < <("$1" __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
}
complete -F _odradek_complete odradek
"""
_ZSH = r"""#compdef odradek
# Completion of odradek for zsh. In ~/.zshrc, after compinit: source <(odradek completion zsh)
_odradek() {
    local line tab=$'\t'
    local -a found texts
    for line in ${(f)"$(${words[1]} __complete zsh "${(@Q)words[2,CURRENT]}" 2>/dev/null)"}; do
        if [[ $line == ":files" ]]; then
            _files
            return
        fi
        found+=("${line%%$tab*}")
        texts+=("${line/$tab/  -- }")
    done
    (( $#found )) && compadd -l -d texts -a found
}
compdef _odradek odradek
"""
_FISH = r"""# Completion of odradek for fish. Once: odradek completion fish > ~/.config/fish/completions/odradek.fish
function __odradek_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l found ($before[1] __complete fish $before[2..-1] "$current" 2>/dev/null)
    if test "$found[1]" = ":files"
        __fish_complete_path "$current"
    else
        printf '%s\n' $found
    end
end
complete -c odradek -f -a '(__odradek_complete)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def register(groups: Groups) -> None:
    """Add the command `completion` to the parser of the command line."""
    parser = add_command(
        groups,
        "completion",
        _print_script,
        "print a script with which a shell completes commands, options and names of the cluster",
    )
    parser.add_argument("shell", choices=sorted(_SCRIPTS), help="the shell that runs the script")


def _print_script(args: argparse.Namespace) -> int:
    if args.json:
        print_json({"shell": args.shell, "script": _SCRIPTS[args.shell]})
    else:
        sys.stdout.write(_SCRIPTS[args.shell])
    return 0


def answer(words: Sequence[str], build: Build) -> int:
    """Print the candidates for a script. `words` are the shell's name and the words after `odradek`, the last of which
    is being typed. For bash the line up to the cursor stands in place of the words.
    """
    import threading

    watchdog = threading.Timer(_END_SECONDS, os._exit, (0,))
    watchdog.daemon = True
    watchdog.start()
    shell, *typed = words or ("",)
    if shell == "bash":
        typed = _words_of_line(typed[0] if typed else "")
    current = typed[-1] if typed else ""
    found = candidates(typed, build)
    if shell == "bash":
        found = [each for each in found if _PLAIN_WORD.fullmatch(each[0])]
    # bash ends a word at these characters, so its candidates begin after them.
    cut = max(current.rfind("="), current.rfind(":")) + 1 if shell == "bash" else 0
    for word, text in found[:_CANDIDATES_MAX]:
        shown = word if word == _FILES else word[cut:]
        sys.stdout.write(f"{shown}\t{text}\n" if text else f"{shown}\n")
    sys.stdout.flush()
    watchdog.cancel()
    return 0


def _words_of_line(line: str) -> list[str]:
    """Split a line into words like a shell, without the first one. A quotation may still be open."""
    import shlex

    for end in ("", "'", '"'):
        try:
            words = shlex.split(line + end)
        except ValueError:
            continue
        if not end and line[-1:].isspace():
            words.append("")
        return words[1:] or [""]
    return [""]


def candidates(words: Sequence[str], build: Build) -> list[tuple[str, str]]:
    """Find the words that may stand in the place of the last one, each with an explanation."""
    *before, current = words or ("",)
    if not before:
        parser = build(None)
        found = [*_commands(parser), *_options(parser, [])]
    else:
        try:
            parser, rest = _leaf(build(before[0]), before)
        except KeyError:
            return []
        found = _after(parser, rest, current)
    return [
        (word, " ".join(text.split()))
        for word, text in found
        if (word.startswith(current) or word == _FILES) and word.isprintable()
        if current.startswith("-") or not word.startswith("-")
    ]


def _leaf(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[argparse.ArgumentParser, Sequence[str]]:
    """Follow the words to the parser of a command. Return it with the words after the command. Raises `KeyError`."""
    for number, word in enumerate(words):
        choices = _subparsers(parser)
        if choices is None:
            return parser, words[number:]
        parser = choices[word]
    return parser, ()


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser] | None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return None


def _commands(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return [(each.dest, each.help or "") for each in action._choices_actions]
    return []


def _options(parser: argparse.ArgumentParser, used: Iterable[str]) -> list[tuple[str, str]]:
    """List the long options of a parser. An option that may be given once is left out when it is used."""
    given = {word.partition("=")[0] for word in used}
    found = []
    for action in parser._actions:
        again = isinstance(action, argparse._AppendAction)
        if action.help == argparse.SUPPRESS or (not again and given & set(action.option_strings)):
            continue
        text = (action.help or "").replace("%%", "%")
        found += [(name, text) for name in action.option_strings if name.startswith("--")]
    return found


def _after(parser: argparse.ArgumentParser, words: Sequence[str], current: str) -> list[tuple[str, str]]:
    """Find the candidates after these words of a command: a value of the last option, an argument, or an option."""
    commands = _commands(parser)
    if commands:
        return [*commands, *_options(parser, words)]
    by_name = {name: action for action in parser._actions for name in action.option_strings}
    option, equals, _ = current.partition("=")
    if equals and option in by_name:
        values = _values(by_name[option], parser, words, current.partition("=")[2])
        return [(value if value == _FILES else f"{option}={value}", text) for value, text in values]
    positionals = [each for each in parser._actions if not each.option_strings]
    place, waiting = 0, None
    for word in words:
        if waiting is not None:
            waiting = None
        elif word in by_name:
            waiting = by_name[word] if by_name[word].nargs is None else None
        elif not word.startswith("-"):
            place += 1
    if waiting is not None:
        return _values(waiting, parser, words, current)
    found = _options(parser, words)
    if positionals and not current.startswith("-"):
        last = positionals[-1]
        action = positionals[place] if place < len(positionals) else last
        if place < len(positionals) or last.nargs in ("+", "*"):
            found = [*_values(action, parser, words, current), *found]
    return found


def _values(
    action: argparse.Action, parser: argparse.ArgumentParser, words: Sequence[str], current: str
) -> list[tuple[str, str]]:
    """Find the values of an argument or option: its choices, files, or names of the cluster."""
    if action.choices is not None:
        return [(str(choice), "") for choice in action.choices]
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if metavar in _FILE_METAVARS:
        return [(_FILES, "")]
    kind = _kind(metavar, words)
    if kind is None or "--bootstrap-server" not in parser._option_string_actions:
        return []
    names = _names(kind, parser, words)
    return [(name, "") for name in names if name.startswith(current)]


def _kind(metavar: str, words: Sequence[str]) -> str | None:
    """Return what a value names: topic, group, broker; None for anything else."""
    if metavar == "NAME" and words and words[0] in ("topic", "group", "broker"):
        return words[0]
    if _TOPIC.match(metavar):
        return "topic"
    return {"GROUP": "group", "ID": "broker", "ID,ID": "broker"}.get(metavar)


def _names(kind: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Ask the cluster for the names of topics, groups or brokers; none if it does not answer in time."""
    from odradek.cli.connecting import connected
    from odradek.cli.failure import CliError
    from odradek.cli.streams.suggestions import names_in_cluster

    args = argparse.Namespace(
        bootstrap_server=parser.get_default("bootstrap_server"),
        command_config=parser.get_default("command_config"),
        timeout=_ASK_SECONDS,
        deadline=None,
    )
    for number, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in ("--bootstrap-server", "--command-config"):
            given = value if equals else words[number + 1] if number + 1 < len(words) else ""
            setattr(args, option[2:].replace("-", "_"), given)
    try:
        with connected(args) as client:
            if kind == "broker":
                return _broker_ids(client)
            return sorted(names_in_cluster(client, kind, _ASK_SECONDS))
    except CliError:
        return []


def _broker_ids(client: Client) -> list[str]:
    cluster = client.admin.describe_cluster(include_fenced=True, timeout=_ASK_SECONDS)
    return [str(broker.node_id) for broker in cluster.brokers]
