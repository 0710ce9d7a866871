"""Users, rights and quotas in a file, for a metadata log that is rebuilt (`odradek metadata rebuild --access`).

The file is one JSON object with the lists `users`, `acls` and `quotas`. Their entries have the forms of the
Ansible variables `odradek_users`, `odradek_acls` and `odradek_quotas`. The records are those that the
controller writes for `odradek user add`, `acl add` and `quota set`, and the same checks are made. No message
has a password.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from odradek.cli.access.access_words import DEFAULT, LIMITS, limit_of, principal_of
from odradek.cli.access.scram_users import (
    DEFAULT_MECHANISM,
    read_password,
    record_of_password,
    warn_of_readers,
)
from odradek.cli.failure import CliError
from odradek.cli.recovering.given_files import GivenJson, json_in, refuse_mistakes

if TYPE_CHECKING:
    from odradek.security.acls.rules import Acl
    from odradek.wire.messages.metadata_records import (
        AccessControlEntryRecord,
        ClientQuotaRecord,
        UserScramCredentialRecord,
    )
    from odradek.wire.structure import Message

__all__ = ["access_records"]

_RESOURCES = ("topic", "group", "transactional_id", "cluster")
_LIMITS = {option.replace("-", "_"): option for option in LIMITS}
_OF_ADDRESSES = "connection_rate"
_KEYS: Mapping[str, tuple[str, ...]] = {
    "users": ("name", "password", "password_file", "mechanism", "state"),
    "acls": ("user", "operation", *_RESOURCES, "prefixed", "host", "deny", "state"),
    "quotas": ("user", "client_id", "ip", *_LIMITS, "state"),
}
_TEXT_BYTES_MAX = (1 << 15) - 1
_SALT_BYTES = 16


class _Entry:
    """One entry of a list. It collects the mistakes in its values."""

    def __init__(self, place: str, values: Mapping[str, GivenJson], mistakes: list[str]) -> None:
        self._place = place
        self.values = values
        self._mistakes = mistakes

    def refuse(self, text: str) -> None:
        self._mistakes.append(f"{self._place}{text}")

    def text(self, key: str) -> str | None:
        """Return a value as text; None if it is missing, empty or no text."""
        value = self.values.get(key)
        if value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, str | int):
            self.refuse(f": {key} must be a text")
            return None
        try:
            data = str(value).encode()
        except UnicodeEncodeError:
            self.refuse(f": {key} is not text in UTF-8")
            return None
        if b"\0" in data or len(data) > _TEXT_BYTES_MAX:
            self.refuse(f": {key} must have at most {_TEXT_BYTES_MAX} bytes, and no zero byte")
            return None
        return str(value)

    def needed(self, key: str) -> str | None:
        """Return a value as text. A missing value is a mistake."""
        if self.values.get(key) in (None, ""):
            self.refuse(f" has no {key}")
            return None
        return self.text(key)

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(f": {key} must be true or false")
        return value is True


def access_records(path: str, new_uuid: Callable[[], bytes]) -> list[Message]:
    """Read a file with users, rights and quotas, and make the records of the metadata log. `-` is standard
    input. Raises `CliError`, after all mistakes of the file were printed.
    """
    document = json_in(path)
    if not isinstance(document, dict):
        raise CliError(f"{path} must be one object with some of the lists {', '.join(_KEYS)}")
    if path != "-":
        warn_of_readers(path, "passwords")
    mistakes = [
        f"the key {key} is unknown: expected one of {', '.join(_KEYS)}"
        for key in document
        if key not in _KEYS
    ]
    records: list[Message] = [
        *_users(_entries(document, "users", mistakes)),
        *_rules(_entries(document, "acls", mistakes), new_uuid),
        *_quotas(_entries(document, "quotas", mistakes)),
    ]
    refuse_mistakes(path, mistakes)
    return records


def _entries(document: Mapping[str, GivenJson], name: str, mistakes: list[str]) -> Iterator[_Entry]:
    """Yield the entries of a list, without those whose state is absent."""
    entries = document.get(name) or []
    if not isinstance(entries, list):
        mistakes.append(f"{name} must be a list")
        return
    for at, values in enumerate(entries, 1):
        place = f"entry {at} of {name}"
        if not isinstance(values, dict):
            mistakes.append(f"{place} must be an object")
            continue
        entry = _Entry(_place(place, values), values, mistakes)
        unknown = sorted(set(values) - set(_KEYS[name]))
        if unknown:
            entry.refuse(f" has no key {', '.join(unknown)}: expected some of {', '.join(_KEYS[name])}")
        state = values.get("state", "present")
        if state not in ("present", "absent"):
            entry.refuse(": state must be present or absent")
        elif state == "present":
            yield entry


def _place(place: str, values: Mapping[str, GivenJson]) -> str:
    """Return the place of an entry, with the name of the one whom it is about."""
    named = next((values[key] for key in ("name", "user", "client_id", "ip") if values.get(key)), None)
    return f"{place} ({named})" if isinstance(named, str | int) else place


def _users(entries: Iterator[_Entry]) -> Iterator[UserScramCredentialRecord]:
    from odradek.security.scram import MECHANISMS

    seen: set[tuple[str, str]] = set()
    for entry in entries:
        name, password = entry.needed("name"), _password(entry)
        mechanism = (entry.text("mechanism") or DEFAULT_MECHANISM).upper()
        if mechanism not in MECHANISMS:
            entry.refuse(f": mechanism must be one of {', '.join(MECHANISMS)}")
        elif name is not None and (name, mechanism) in seen:
            entry.refuse(f" is a second password of this user for {mechanism}")
        elif name is not None and password is not None:
            yield record_of_password(name, password, mechanism, os.urandom(_SALT_BYTES))
        seen.add((name or "", mechanism))


def _password(entry: _Entry) -> str | None:
    file = entry.text("password_file")
    if file is None:
        return entry.needed("password")
    if entry.values.get("password") is not None or file == "-":
        entry.refuse(" must have either password or password_file, which names a file")
        return None
    try:
        return read_password(file)
    except CliError as error:
        entry.refuse(f": {error}")
        return None


def _rules(entries: Iterator[_Entry], new_uuid: Callable[[], bytes]) -> Iterator[AccessControlEntryRecord]:
    from odradek.metadata_quorum.controller.access.acls import acl_record

    rules = dict.fromkeys(rule for each in entries if (rule := _rule(each)) is not None)
    for rule in rules:
        yield acl_record(new_uuid(), rule)


def _rule(entry: _Entry) -> Acl | None:
    from odradek.security.acls.acl_requests import checked_acl
    from odradek.security.acls.rules import (
        ANY_HOST,
        CLUSTER_NAME,
        PatternType,
        Permission,
        ResourceType,
        check_supported,
        operation_named,
    )
    from odradek.wire.errors import KafkaError
    from odradek.wire.messages.create_acls import AclCreation

    user, operation = entry.needed("user"), entry.needed("operation")
    names = {each: entry.text(each) for each in _RESOURCES if each != "cluster"}
    named: list[tuple[str, str]] = [(kind, name) for kind, name in names.items() if name is not None]
    if entry.flag("cluster"):
        named.append(("cluster", CLUSTER_NAME))
    pattern = PatternType.PREFIXED if entry.flag("prefixed") else PatternType.LITERAL
    permission = Permission.DENY if entry.flag("deny") else Permission.ALLOW
    host = entry.text("host") or ANY_HOST
    if len(named) != 1:
        entry.refuse(f" must have one of {', '.join(_RESOURCES)}")
        return None
    if user is None or operation is None:
        return None
    kind = ResourceType[named[0][0].upper()]
    try:
        code = operation_named(operation)
        check_supported(kind, code)
        return checked_acl(
            AclCreation(kind, named[0][1], pattern, principal_of(user), host, code, permission)
        )
    except ValueError as error:
        entry.refuse(f": operation {error}")
        return None
    except KafkaError as error:
        entry.refuse(f": {error.message}")
        return None


def _quotas(entries: Iterator[_Entry]) -> Iterator[ClientQuotaRecord]:
    from odradek.metadata_quorum.controller.access.client_quotas import check_quotas
    from odradek.wire.errors import KafkaError
    from odradek.wire.messages.alter_client_quotas import OpData
    from odradek.wire.messages.metadata_records import ClientQuotaRecord, EntityData

    seen: set[tuple[tuple[str, str], ...]] = set()
    for entry in entries:
        kinds = {"client-id": "client_id", "ip": "ip", "user": "user"}
        named = {kind: name for kind, key in kinds.items() if (name := entry.text(key)) is not None}
        ops = [OpData(LIMITS[_LIMITS[key]][0], value, False) for key, value in _limits(entry)]
        known = tuple(sorted(named.items()))
        if not named:
            entry.refuse(" needs a user, a client_id, both, or an ip")
            continue
        if known in seen:
            entry.refuse(" is listed twice: write its limits into one entry")
        seen.add(known)
        if any(key in entry.values for key in _LIMITS) and ("ip" in named) != (_OF_ADDRESSES in entry.values):
            entry.refuse(": an ip has a connection_rate and nothing else, and only an ip has one")
            continue
        entity = {kind: None if name == DEFAULT else name for kind, name in named.items()}
        try:
            check_quotas(entity, ops)
        except KafkaError as error:
            entry.refuse(f": {error.message}")
            continue
        for op in ops:
            yield ClientQuotaRecord(
                [EntityData(kind, name) for kind, name in entity.items()], op.key, op.value, False
            )


def _limits(entry: _Entry) -> Iterator[tuple[str, float]]:
    """Yield the limits of a quota. A limit without a value is none."""
    if not any(key in entry.values for key in _LIMITS):
        entry.refuse(f" has no limit: give one of {', '.join(_LIMITS)}")
    for key, option in _LIMITS.items():
        value = entry.values.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            entry.refuse(f": {key} must be a number")
            continue
        try:
            yield key, limit_of(option, str(value))
        except argparse.ArgumentTypeError as error:
            entry.refuse(f": {key}: {error}")
