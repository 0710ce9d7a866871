"""All log events that a node's sources can write, with their levels, found in the syntax tree.

An event is the first argument of a log's method: `log.info("node.ready", ...)`. The call may get it in three ways. Any
other way is an error, so that no event is overlooked:

* as a text, or as one text of two (`"isr.expanded" if grown else "isr.shrunk"`);
* as a parameter of the function around the call; then calls of that function count (`_report(options, "log.truncated", ...)`);
* by a local name for the method (`level = log.warning if is_bad else log.info`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import attrs

from tests.docs.markdown import ROOT

SOURCES = ("metadata_quorum", "data_plane", "odradek")
"""The packages of a node. `wire` is left out, since it writes no log."""
LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}
"""The level that a log line shows, by the method that writes it."""
EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
_LOGS = ("log", "logger")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class HiddenEvent(Exception):
    """A use of a log's method from which the event's name cannot be read."""


@attrs.frozen
class _Use:
    """A use of a log's method in the sources: its expression, and the function around it."""

    method: ast.Attribute
    parent: ast.AST
    function: _Function | None

    @property
    def level(self) -> str:
        return LEVELS[self.method.attr]


@attrs.frozen
class _Forwarder:
    """A function that logs the event that its callers pass in the argument at `position`."""

    name: str
    position: int
    level: str


def sources_of_a_node() -> Iterator[tuple[str, str]]:
    """Yield name and text of each module."""
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text()


def log_events(sources: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return the levels of each event. Raises `HiddenEvent`."""
    found: dict[str, set[str]] = {}
    forwarders: list[_Forwarder] = []
    calls: list[ast.Call] = []
    for name, text in sources:
        uses, calls_here = _read(ast.parse(text))
        calls += calls_here
        for use in uses:
            events = _called_at_once(use) if _is_called(use) else _called_by_name(use)
            forwarder = _forwarder(use) if not events else None
            if forwarder is not None:
                forwarders.append(forwarder)
            elif not events:
                raise HiddenEvent(f"{name}:{use.method.lineno}: which event is written here?")
            for event in events:
                found.setdefault(event, set()).add(use.level)
    for call in calls:
        for each in forwarders:
            for event in _forwarded(call, each):
                found.setdefault(event, set()).add(each.level)
    return found


def _read(module: ast.Module) -> tuple[list[_Use], list[ast.Call]]:
    uses: list[_Use] = []
    calls: list[ast.Call] = []
    waiting: list[tuple[ast.AST, _Function | None]] = [(module, None)]
    while waiting:
        node, function = waiting.pop()
        if isinstance(node, _Function):
            function = node
        elif isinstance(node, ast.Call):
            calls.append(node)
        for child in ast.iter_child_nodes(node):
            waiting.append((child, function))
            if isinstance(child, ast.Attribute) and child.attr in LEVELS and _name(child.value) in _LOGS:
                uses.append(_Use(child, node, function))
    return uses, calls


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name such as `self._broker.log`, without its underscore."""
    if isinstance(node, ast.Attribute):
        return node.attr.lstrip("_")
    return node.id.lstrip("_") if isinstance(node, ast.Name) else ""


def _is_called(use: _Use) -> bool:
    return isinstance(use.parent, ast.Call) and use.parent.func is use.method


def _texts(arguments: list[ast.expr], position: int = 0) -> list[str]:
    """Return the texts that an argument can have, or none if the source does not show them."""
    waiting = arguments[position : position + 1]
    texts: list[str] = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.IfExp):
            waiting += [node.body, node.orelse]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
        else:
            return []
    return texts


def _called_at_once(use: _Use) -> list[str]:
    assert isinstance(use.parent, ast.Call)
    return _texts(use.parent.args)


def _called_by_name(use: _Use) -> list[str]:
    """Return the events of a method under a local name: `level = log.warning if is_bad else log.info`,
    `level("event")`."""
    nodes = [] if use.function is None else list(ast.walk(use.function))
    names = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and (node.value is use.parent or node.value is use.method)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [event for call in calls if _called_name(call) in names for event in _texts(call.args)]


def _called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _forwarder(use: _Use) -> _Forwarder | None:
    """Return the function around a call that logs one of the function's own parameters."""
    if use.function is None or not isinstance(use.parent, ast.Call) or not use.parent.args:
        return None
    parameters = [each.arg for each in use.function.args.args if each.arg != "self"]
    told = use.parent.args[0]
    if not isinstance(told, ast.Name) or told.id not in parameters:
        return None
    return _Forwarder(use.function.name, parameters.index(told.id), use.level)


def _forwarded(call: ast.Call, forwarder: _Forwarder) -> list[str]:
    if _called_name(call) != forwarder.name:
        return []
    return [text for text in _texts(call.args, forwarder.position) if EVENT.fullmatch(text)]
