"""Write the argument specs and the READMEs of the collection's roles: `python -m deploy.role_pages`.

Both are generated from two tables of the collection: `module_utils/variables.py`, which also serves to check
inventories, and `module_utils/role_tasks.py`. So only the tables are edited, and a test compares the generated files with
them.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COLLECTIONS = ROOT / "deploy" / "ansible" / "collections"
ROLES = COLLECTIONS / "ansible_collections" / "odradek" / "cluster" / "roles"
NOTE = "Written by `python -m deploy.role_pages` from plugins/module_utils/variables.py."
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./, ()'")
_WIDTH = 110


def table() -> Any:
    """Import the collection's table of variables, by its module name in Ansible."""
    if str(COLLECTIONS) not in sys.path:
        sys.path.append(str(COLLECTIONS))
    from ansible_collections.odradek.cluster.plugins.module_utils import variables

    return variables


def tasks() -> Any:
    """Import the collection's table of the roles' files of tasks, by its module name in Ansible."""
    table()
    from ansible_collections.odradek.cluster.plugins.module_utils import role_tasks

    return role_tasks


def _scalar(value: Any) -> str:
    """Return a value as YAML, in quotes if it could be read as another type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    text = str(value)
    is_plain = text[:1].isalpha() or text[:1] == "/"
    is_word = text.lower() in ("yes", "no", "on", "off", "true", "false", "null")
    return text if is_plain and set(text) <= _PLAIN and not is_word else '"' + text.replace('"', '\\"') + '"'


def _lines(value: Any, depth: int) -> Iterator[str]:
    """Yield dictionaries and lists as lines of YAML. `depth` is the level of indentation."""
    blanks = "  " * depth
    if isinstance(value, dict):
        for key, each in value.items():
            if isinstance(each, dict | list | tuple) and each:
                yield f"{blanks}{key}:"
                yield from _lines(each, depth + 1)
            else:
                yield f"{blanks}{key}: {'[]' if each == [] else _scalar(each)}"
    else:
        for each in value:
            yield f"{blanks}- {_scalar(each)}"


def option(variable: Any) -> dict[str, Any]:
    """Return the description of a variable as an option in an argument spec."""
    found: dict[str, Any] = {"description": variable.text, "type": variable.type}
    if variable.elements:
        found["elements"] = variable.elements
    if variable.required:
        found["required"] = True
    if variable.default is not None and not variable.required:
        found["default"] = variable.default
    if variable.choices:
        found["choices"] = list(variable.choices)
    if variable.name == "password":
        found["no_log"] = True
    if variable.options:
        found["options"] = {each.name: option(each) for each in variable.options}
    return found


def spec_of(role: str) -> str:
    """Return the argument specs of a role as YAML: options for each of its task files that use variables."""
    known = table().every_variable()
    entries = {}
    for name, entry in tasks().ENTRIES[role].items():
        entries[name] = {"short_description": entry.text}
        if entry.takes:
            entries[name]["options"] = {each: option(known[each]) for each in entry.takes}
    return "\n".join(["---", f"# {NOTE}", *_lines({"argument_specs": entries}, 0)]) + "\n"


def readme_of(role: str) -> str:
    """Return the README of a role: its task files and its variables."""
    variables = table()
    known = variables.every_variable()
    entries = tasks().ENTRIES[role]
    taken = dict.fromkeys(each for entry in entries.values() for each in entry.takes)
    own = [each.name for each in variables.OF_ROLES[role]]
    rows = [known[each] for each in dict.fromkeys((*own, *taken))]
    lines = [
        f"# odradek.cluster.{role}",
        "",
        *textwrap.wrap(tasks().ABOUT_ROLES[role], _WIDTH),
        f"<!-- {NOTE} -->",
        "",
        "| tasks | what they do |",
        "| --- | --- |",
        *(f"| `{name}` | {entry.text} |" for name, entry in entries.items()),
        "",
        "| variable | type | default | what it is |",
        "| --- | --- | --- | --- |",
        *(f"| `{each.name}` | {_type(each)} | {_default(each)} | {_cell(each.text)} |" for each in rows),
    ]
    return "\n".join(lines).replace("|  |", "| |") + "\n"


def _type(variable: Any) -> str:
    of = f" of {variable.elements}" if variable.elements else ""
    if variable.high is not None:
        of = f" from {variable.low} to {variable.high}"
    return variable.type + of


def _default(variable: Any) -> str:
    if variable.default is None:
        return ""
    value = variable.default
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else _scalar(value)
    return f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def pages() -> dict[Path, str]:
    """Return the texts of all generated files, by path."""
    found = {}
    for role in tasks().ENTRIES:
        found[ROLES / role / "meta" / "argument_specs.yml"] = spec_of(role)
        found[ROLES / role / "README.md"] = readme_of(role)
    return found


def main() -> None:
    """Write all generated files."""
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
