"""docs/api.md, docs/api-admin.md and docs/api-keys.md, generated from signatures and docstrings by `python -m
tests.docs.api_reference`.

They describe the client's public API, `odradek` and `odradek.trio`, with its values, errors and keys. Docstrings of
methods are copied word for word. Calls keep the order and the headings that the sources give them by comments on lines
of their own.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from itertools import pairwise
from textwrap import dedent
from types import FunctionType, ModuleType
from typing import Any, ForwardRef, TypeAlias

import attrs

import odradek
from odradek import trio
from odradek.client import admin, errors
from odradek.client.admin import admin_acls
from odradek.client.admin.admin_methods import AsyncAdminMethods, BlockingAdminMethods
from odradek.client.consumer import consumer_types
from odradek.client.core import client_keys, known_cluster, partition_offsets
from odradek.client.shells.record_future import RecordFuture
from odradek.security.acls import rules
from tests.docs.markdown import ROOT

CLIENTS, ADMINISTRATION, KEYS = "docs/api.md", "docs/api-admin.md", "docs/api-keys.md"
CLIENTS_ABOUT = """\
[client.md](client.md) is the guide,
with examples, and [examples/](../examples/README.md) has whole programs. [spark-options.md](spark-options.md) has the options of the
format `"odradek"` for Spark. A partition is an `odradek.TopicPartition`, or a plain tuple such as `("readings", 0)`. Times are seconds,
unless a name ends in `_ms`."""
ADMINISTRATION_ABOUT = """\
[client.md](client.md#administer) is
the guide. Values are imported from `odradek.client.admin`, those of ACLs from `odradek.client.admin.admin_acls` and
`odradek.security.acls.rules`. On trio each call is awaited."""
KEYS_ABOUT = """\
[client.md](client.md) is the guide.
Keys are Kafka's; those of ours begin with `odradek.`. They are given in a mapping, or as keyword arguments with underscores for dots.
Values may be texts, as in a properties file. Times are milliseconds, sizes bytes."""
INSIDE = {"For futures", "Inside", "How calls reach the core", "The loop"}
"""Headings in the sources. Methods below them are public only for other modules of this project."""
NOT_SHOWN = {
    "identity": "the simulator's checks look at it",
    "limit_transaction_version": "the simulator plays older clients by it",
    "call_with_outcome": "`send` calls it",
}
"""Public names that do not belong to the documented API, each with its user."""
CALLS = (FunctionType, property, cached_property, classmethod)
LINE_MAX = 100
Class: TypeAlias = type[Any]
BLOCKING: tuple[Class, ...] = (odradek.Producer, RecordFuture, odradek.Consumer, odradek.Client)
VALUES: tuple[Class, ...] = (
    odradek.TopicPartition,
    odradek.ConsumerRecord,
    odradek.RecordMetadata,
    odradek.Delivered,
    odradek.OffsetAndMetadata,
    consumer_types.OffsetAndTimestamp,
    consumer_types.ConsumerGroupMetadata,
    consumer_types.RawBatch,
    odradek.RebalanceListener,
    odradek.SubscriptionPattern,
    known_cluster.Broker,
    known_cluster.Topic,
    known_cluster.Partition,
    partition_offsets.ListedOffset,
)
ACL_VALUES: tuple[Class, ...] = (
    admin_acls.Acl,
    admin_acls.AclFilter,
    rules.ResourceType,
    rules.PatternType,
    rules.Operation,
    rules.Permission,
)
SETTINGS: tuple[tuple[str, Class], ...] = (
    ("All clients", client_keys.CommonSettings),
    ("Producer", client_keys.ProducerSettings),
    ("Consumer", client_keys.ConsumerSettings),
    ("Admin", client_keys.AdminSettings),
)


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    return {
        name: "\n\n".join([_head(title, about), *parts]) + "\n"
        for name, title, about, parts in (
            (CLIENTS, "API: the clients", CLIENTS_ABOUT, _clients()),
            (ADMINISTRATION, "API: administration", ADMINISTRATION_ABOUT, _administration()),
            (KEYS, "API: configuration keys of clients", KEYS_ABOUT, _configuration()),
        )
    }


def _head(title: str, about: str) -> str:
    return f"# {title}\n\nThe code wrote this page: `python -m tests.docs.api_reference` writes it again. {about}"


def _clients() -> Iterator[str]:
    yield _lines(
        "| section | what it has |",
        "| --- | --- |",
        "| [Producer](#producer), [RecordFuture](#recordfuture) | write records |",
        "| [Consumer](#consumer) | read topics, alone or in a group |",
        "| [Admin](api-admin.md) | administer a cluster, on a page of its own |",
        "| [Client](#client) | single requests, without a thread |",
        "| [On trio](#on-trio) | `odradek.trio`: the same for async programs |",
        "| [Values](#values) | records, offsets, partitions |",
        "| [Errors](#errors) | `odradek.KafkaError`, `odradek.ClientError` and their kinds |",
        "| [Keys](api-keys.md) | all configuration keys, with defaults |",
    )
    for cls in BLOCKING:
        yield from _class(cls, "##")
    yield "## On trio"
    yield from _trio()
    yield "## Values"
    for cls in VALUES:
        yield from _value(cls)
    yield "## Errors"
    yield from _errors()


def _administration() -> Iterator[str]:
    yield from _class(odradek.Admin, "##")
    yield "## Values"
    for cls in _admin_values():
        yield from _value(cls)


def _lines(*lines: str) -> str:
    return "\n".join(lines)


# -- classes and their calls ---------------------------------------------------------------------------------------


def calls_of(cls: Class) -> Iterator[tuple[str, str, Any]]:
    """Yield heading, name and attribute of each public call and property, in source order, those of base
    classes last."""
    seen: set[str] = set(NOT_SHOWN)
    for base in cls.__mro__:
        if not base.__module__.startswith("odradek."):
            continue
        headings = _headings(base)
        for name in list(vars(base)):
            if name in seen or (name.startswith("_") and name not in ("__iter__", "__aiter__")):
                continue
            found = inspect.getattr_static(base, name)
            if type(found).__name__ == "_Method":
                getattr(base, name)
                found = inspect.getattr_static(base, name)
            heading = headings.get(name, "")
            if isinstance(found, CALLS) and heading not in INSIDE:
                seen.add(name)
                yield heading, name, found


@cache
def _headings(cls: Class) -> dict[str, str]:
    """Return the heading of each member of a class: the last comment on a line of its own above it."""
    found, heading = {}, ""
    for line in inspect.getsource(cls).splitlines():
        comment = re.fullmatch(r"    # ([A-Z][\w ]+?)(?:: .*)?", line)
        member = re.match(r"    (?:async )?(?:def )?(\w+)(?:\(| = )", line)
        if comment is not None:
            heading = comment[1]
        elif member is not None:
            found[member[1]] = heading
    return found


def _class(cls: Class, level: str) -> Iterator[str]:
    yield f"{level} {cls.__name__}"
    yield _documentation(cls)
    by_heading: dict[str, list[tuple[str, Any]]] = {}
    for heading, name, found in calls_of(cls):
        by_heading.setdefault(heading, []).append((name, found))
    for heading, calls in by_heading.items():
        if heading:
            yield f"{level}# {cls.__name__}: {heading if heading.isupper() or heading == 'ACLs' else heading[0].lower() + heading[1:]}"
        for name, found in calls:
            yield f"**`{cls.__name__}.{name}`**"
            yield _call(name, found)


def _call(name: str, found: Any) -> str:
    function = _function(found)
    doc = _documentation(function)
    if isinstance(found, FunctionType | classmethod):
        return f"```python\n{signature(name, function)}\n```\n\n{doc}"
    return f"A property of type `{_plain(function.__annotations__.get('return', 'Any'))}`. {doc}"


def _function(found: Any) -> Any:
    """Return the function of a member."""
    if isinstance(found, property):
        return found.fget
    if isinstance(found, classmethod):
        return found.__func__
    return found.func if isinstance(found, cached_property) else found


def signature(name: str, function: Callable[..., Any]) -> str:
    """Return a call's signature as a user writes it, without `self` and the core that operations take."""
    known = inspect.signature(function)
    parameters = [each for each in known.parameters.values() if each.name not in ("self", "cls", "core")]
    texts, is_keyword_only = [], False
    for each in parameters:
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            texts.append("*")
        prefix = "**" if each.kind is inspect.Parameter.VAR_KEYWORD else ""
        text = f"{prefix}{each.name}: {_plain(each.annotation)}"
        texts.append(text if each.default is inspect.Parameter.empty else f"{text} = {_shown(each.default)}")
    start = "await " if _is_awaited(function) else ""
    result = re.sub(
        r"^(?:Operation|Abstract\w*ContextManager)\[(.*)\]$", r"\1", _plain(known.return_annotation)
    )
    end = f" -> {result}"
    line = f"{start}{name}({', '.join(texts)}){end}"
    if len(line) <= LINE_MAX:
        return line
    return _lines(f"{start}{name}(", *(f"    {text}," for text in texts), f"){end}")


def _is_awaited(function: Any) -> bool:
    while hasattr(function, "__wrapped__") and not inspect.iscoroutinefunction(function):
        function = function.__wrapped__
    return inspect.iscoroutinefunction(function)


def _plain(annotation: Any) -> str:
    """Return an annotation without types that only the sources need."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    text = re.sub(r"\bByPartition\[", "Mapping[TopicPartition, ", text)
    text = re.sub(r"\boffsets\.", "", text)
    text = re.sub(r"\bCallError\b", "KafkaError | ClientError", text)
    return re.sub(r"\bAsync(Producer|Consumer|Admin)\b", r"\1", text)


def _shown(default: Any) -> str:
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    return repr(default)


def _documentation(thing: Any) -> str:
    """Turn a docstring into Markdown. Its errors become a list."""
    text = inspect.getdoc(thing)
    assert text, f"{thing} has no docstring"
    before, raises, after = text.partition("\nRaises:\n")
    if not raises:
        return text
    items: list[str] = []
    for line in after.splitlines():
        if re.match(r"    \S", line):
            names, _, why = line.strip().partition(": ")
            items.append(f"* {', '.join(f'`{name}`' for name in names.split(', '))}: {why}")
        else:
            items.append(f"  {line.strip()}")
    return f"{before.rstrip()}\n\nRaises:\n\n" + "\n".join(items)


# -- trio ----------------------------------------------------------------------------------------------------------


def _trio() -> Iterator[str]:
    yield _lines(
        "`odradek.trio` opens the same clients in a trio program. They take the same arguments and raise the same errors. The tables name",
        "the calls that are awaited. All calls of `Admin` are.",
    )
    for function in (trio.open_producer, trio.open_consumer, trio.open_admin):
        yield f"**`odradek.trio.{function.__name__}`**"
        yield f"```python\n{signature(function.__name__, inspect.unwrap(function)).replace('AsyncIterator[Admin]', 'Admin')}\n```"
        yield _documentation(function)
    for cls, blocking in ((trio.Producer, odradek.Producer), (trio.Consumer, odradek.Consumer)):
        name = cls.__name__.removeprefix("Async")
        yield f"### {name} on trio"
        same = {call for _, call, _ in calls_of(blocking)}
        awaited: list[str] = []
        plain: list[str] = []
        other: list[tuple[str, Any]] = []
        for _, call, found in calls_of(cls):
            is_shared = call in same or call == "__aiter__"
            (awaited if _is_awaited(_function(found)) else plain).append(f"`{call}`")
            if not is_shared:
                other.append((call, found))
        yield _lines(
            "| | calls |",
            "| --- | --- |",
            f"| awaited | {' '.join(sorted(awaited))} |",
            f"| not awaited | {' '.join(sorted(plain))} |",
        )
        for call, found in other:
            yield f"**`{name}.{call}`**"
            yield _call(call, found)
    yield from _class(trio.SentRecord, "###")
    own = {name for name in vars(AsyncAdminMethods) if not name.startswith("_")}
    assert own == {name for name in vars(BlockingAdminMethods) if not name.startswith("_")}


# -- values --------------------------------------------------------------------------------------------------------


def _admin_values() -> list[Class]:
    found = [getattr(admin, name) for name in admin.__all__]
    classes = [each for each in found if isinstance(each, type) and hasattr(each, "__module__")]
    return [*classes, *ACL_VALUES]


def _value(cls: Class) -> Iterator[str]:
    yield f"### {cls.__name__}"
    yield _documentation(cls)
    if issubclass(cls, enum.Enum):
        yield "Members: " + ", ".join(f"`{each.name}`" for each in cls) + "."
        return
    rows = list(_fields(cls))
    if rows:
        yield _lines("| field | type | default | |", "| --- | --- | --- | --- |", *rows)
    for _, name, found in calls_of(cls):
        function = _function(found)
        if function.__doc__ and not name.startswith("_") and name != "of":
            yield f"**`{cls.__name__}.{name}`**"
            yield _call(name, found)


def _fields(cls: Class) -> Iterator[str]:
    notes = _field_notes(cls)
    if attrs.has(cls):
        given = {each.name: (each.type, each.default) for each in attrs.fields(cls)}
        missing: Any = attrs.NOTHING
    else:
        missing = object()
        defaults = getattr(cls, "_field_defaults", {})
        given = {
            name: (cls.__annotations__[name], defaults.get(name, missing))
            for name in getattr(cls, "_fields", ())
        }
    for name, (kind, default) in given.items():
        shown = "" if default is missing else f"`{_default(default)}`"
        yield f"| `{name}` | `{_cell(_plain(kind))}` | {shown} | {_cell(notes.get(name, ''))} |"


def _default(default: Any) -> str:
    made = getattr(default, "factory", None)
    return _shown(default) if made is None else repr(made())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _field_notes(cls: Class) -> dict[str, str]:
    """Return the text behind each field of a class and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("odradek."):
            body = ast.parse(dedent(inspect.getsource(base))).body[0]
            assert isinstance(body, ast.ClassDef)
            found |= _notes_in(body.body)
    return found


def _notes_in(body: Sequence[ast.stmt]) -> dict[str, str]:
    found = {}
    for field, note in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(note, ast.Expr)
            and isinstance(note.value, ast.Constant)
            and isinstance(note.value.value, str)
        ):
            found[field.target.id] = note.value.value
    return found


# -- errors and keys -----------------------------------------------------------------------------------------------


def _errors() -> Iterator[str]:
    yield _lines(
        "A broker's error code comes as `odradek.KafkaError`: `code` is an `odradek.ErrorCode`, `message` a text, and `code.retriable` says",
        "whether the same call may succeed later. Errors that the client finds are `odradek.ClientError`, with `retriable`. They are in",
        "`odradek.client.errors`, those of a consumer in `odradek.client.consumer.consumer_types`.",
    )
    rows = []
    for module in (errors, consumer_types):
        for cls in _exceptions_of(module):
            base = cls.__bases__[0].__name__
            answer = getattr(cls, "retriable", None)
            retriable = "yes" if answer else "by its code" if issubclass(cls, odradek.KafkaError) else "no"
            rows.append(f"| `{cls.__name__}` | `{base}` | {retriable} | {_cell(inspect.getdoc(cls) or '')} |")
    yield _lines("| class | kind of | retriable | |", "| --- | --- | --- | --- |", *rows)
    codes = [code.name for code in odradek.ErrorCode if code.retriable]
    yield "Codes that are retriable: " + ", ".join(f"`{code}`" for code in codes) + "."


def _exceptions_of(module: ModuleType) -> list[type[BaseException]]:
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Exception) and each.__module__ == module.__name__
    ]


def _configuration() -> Iterator[str]:
    common = {each.name for each in attrs.fields(client_keys.CommonSettings)}
    shared = attrs.fields_dict(client_keys.CommonSettings)
    for title, cls in SETTINGS:
        notes, rows = _field_notes(cls), []
        for each in attrs.fields(cls):
            is_own = each.name not in common or each.default != shared[each.name].default
            if is_own or cls is client_keys.CommonSettings:
                rows.append(
                    f"| `{each.name.replace('_', '.')}` | {_key_default(each)} | {_cell(notes[each.name])} |"
                )
        yield f"## {title}"
        yield _lines("| key | default | |", "| --- | --- | --- |", *rows)
    yield "## Keys without effect"
    ignored = ", ".join(f"`{key}`" for key in sorted(client_keys.WITHOUT_EFFECT))
    only = ", ".join(f"`{key}`" for key in sorted(client_keys.NEUTRAL_ONLY))
    yield f"Accepted with any value, and named in one warning ([why](client.md#keys-without-effect)): {ignored}."
    yield f"Accepted only with the value that leaves their feature off: {only}."


def _key_default(field: Any) -> str:
    if field.default is attrs.NOTHING:
        return "required"
    default = field.default
    if field.name == "acks":
        default = "all"
    if isinstance(default, bool):
        default = str(default).lower()
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    return "" if default in (None, "") else f"`{default}`"


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (ROOT / name).write_text(text)


if __name__ == "__main__":
    main()
