#!/usr/bin/python
"""Writes several small configuration files in one module call, instead of one call for each file."""

from __future__ import annotations

DOCUMENTATION = r"""
module: files
short_description: Write several configuration files
description:
  - Each file is replaced atomically. Missing directories are created.
  - Shows the difference with C(--diff), without the values of secrets.
  - Apart from this difference, contents appear in no output at any verbosity, and in no journal.
options:
  files:
    description: The files.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Path of the file on the host.
        type: path
        required: true
      content:
        description: Content of the file.
        type: str
        required: true
      mode:
        description: Its mode.
        type: str
        default: "0644"
      group:
        description: Its group; empty for that of the user who writes.
        type: str
        default: root
      owner:
        description: Its owner; empty for the user who writes.
        type: str
        default: root
      hidden:
        description: Show no line of it in a difference, as of a private key.
        type: bool
        default: false
  directories:
    description: Directories that are there before the files, with mode and owner.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where it is.
        type: path
        required: true
      mode:
        description: Its mode.
        type: str
        default: "0755"
      group:
        description: Its group; empty for that of the user who writes.
        type: str
        default: root
      owner:
        description: Its owner; empty for the user who writes.
        type: str
        default: root
  systemd:
    description: Reload systemd if a file changed.
    type: bool
    default: false
  release:
    description: Switch to this release, which is installed, before the files are written.
    type: dict
    suboptions:
      name:
        description: Its name.
        type: str
        required: true
      previous:
        description: The release that a roll-back goes to; by default the one that is current.
        type: str
      root:
        description: Where releases are.
        type: path
        default: /opt/odradek
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Configuration
  odradek.cluster.files:
    files:
      - {path: /etc/example.conf, content: "a = 1\n"}
"""
RETURN = r"""
paths:
  description: Files and directories that are other now.
  type: list
  elements: str
  returned: always
"""

import grp
import os
import pwd
import re
import stat
import tempfile
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.odradek.cluster.plugins.module_utils.links import activate, is_installed, linked


def _read(path: str) -> str | None:
    try:
        # Keep line ends as they are, because a difference in them counts as a change.
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None


_HIDDEN = "[hidden]"
_SECRET_KEY = re.compile(
    r"secret|password|passphrase|jaas\.config|\.key|credential|token|certificate\.chain|truststore\.certificates",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"LoginModule|PRIVATE KEY|password|secret|\buser_", re.IGNORECASE)
_PLACE = re.compile(r"\.(?:location|url|file|type|class|ms)$")
"""Matches the ends of keys whose values are paths, types or times. Such values are not secret."""
_URL_SECRET = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_SEPARATOR = re.compile(r"[=: \t\f]")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r|\Z)")


def masked(content: str) -> str:
    """Hide the values of secret keys in a properties file's content.

    Lines are parsed as in Java: a value follows C(=), C(:) or blanks, and continues after a backslash; a key may have
    escapes. A comment that mentions a secret is hidden completely, because it may be a disabled line.
    """
    return "".join(_shown(raw) for raw in _logical_lines(content))


def _logical_lines(content: str) -> list[str]:
    """Split the content into lines with their line ends. Lines that continue after a backslash are joined."""
    found: list[str] = []
    goes_on = False
    for raw in _LINE.findall(content):
        text = raw.rstrip("\r\n")
        begins = not goes_on
        if goes_on:
            found[-1] += raw
        else:
            found.append(raw)
        backslashes = len(text) - len(text.rstrip("\\"))
        is_comment = begins and text.lstrip(" \t\f")[:1] in ("#", "!", "")
        goes_on = backslashes % 2 == 1 and not is_comment
    return found


def _shown(raw: str) -> str:
    text = raw.rstrip("\r\n")
    end = raw[len(text) :]
    blanks = text[: len(text) - len(text.lstrip(" \t\f"))]
    line = re.sub(r"\\(?:\r\n|\n|\r)[ \t\f]*", "", text[len(blanks) :])
    if line[:1] in ("#", "!"):
        return f"{blanks}{line[0]} {_HIDDEN}{end}" if _speaks_of_secrets(line) else raw
    key_end = _key_end(line)
    key, value = line[:key_end], line[key_end:]
    if _is_secret(_unescaped(key), _unescaped(value)):
        return f"{blanks}{key}={_HIDDEN}{end}"
    return raw


def _speaks_of_secrets(comment: str) -> bool:
    text = _unescaped(comment)
    return _SECRET_KEY.search(text) is not None or _SECRET_VALUE.search(text) is not None


def _key_end(line: str) -> int:
    at = 0
    while at < len(line) and not _SEPARATOR.match(line[at]):
        at += 2 if line[at] == "\\" else 1
    return min(at, len(line))


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], text)


def _is_secret(key: str, value: str) -> bool:
    if not value.strip(" \t\f=:"):
        return False
    if _SECRET_KEY.search(key) and not _PLACE.search(key):
        return True
    if _URL_SECRET.search(value):
        return True
    return _PLACE.search(key) is None and _SECRET_VALUE.search(value) is not None


_NO_ARGUMENTS = {"module_args": {}}


class _Module(AnsibleModule):  # type: ignore[misc]  # Ansible has no types
    """A module that never passes file contents to the host's journal or to C(-vvv), even if an argument is invalid."""

    def _log_invocation(self) -> None:
        """Log no arguments, because file contents have secrets, and paths alone are of little use."""

    def exit_json(self, **kwargs: Any) -> NoReturn:
        """Return the result without the arguments, which Ansible adds by default."""
        super().exit_json(**kwargs, invocation=_NO_ARGUMENTS)

    def fail_json(self, msg: str, **kwargs: Any) -> NoReturn:
        """Return a failure without the arguments, even if an invalid argument is the reason."""
        super().fail_json(msg, **kwargs, invocation=_NO_ARGUMENTS)


def _is_as_wanted(path: str, content: str, mode: int, owner: int, group: int) -> bool:
    if _read(path) != content:
        return False
    found = os.stat(path)
    return stat.S_IMODE(found.st_mode) == mode and found.st_uid == owner and found.st_gid == group


def _write(path: str, content: str, mode: int, owner: int, group: int) -> None:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fchown(descriptor, owner, group)
            os.fsync(descriptor)
        os.rename(temporary, path)
    except OSError:
        # If the disk is full, no copy of a secret must remain.
        os.unlink(temporary)
        raise


def _attributes(entry: dict) -> tuple[int, int, int]:
    """Return mode, owner and group of an entry. In check mode the user or the group may not exist yet; then root's id
    is returned. An empty name stands for the user of this process, or its group.
    """
    try:
        owner = pwd.getpwnam(entry["owner"]).pw_uid if entry["owner"] else os.geteuid()
    except KeyError:
        owner = 0
    try:
        group = grp.getgrnam(entry["group"]).gr_gid if entry["group"] else os.getegid()
    except KeyError:
        group = 0
    return int(entry["mode"], 8), owner, group


def _directories(module: _Module) -> list[str]:
    """Make the directories, and set their modes and owners. Return the paths of those that were missing or had another
    mode or owner.
    """
    changed = []
    for entry in module.params["directories"]:
        path, (mode, owner, group) = entry["path"], _attributes(entry)
        if os.path.isdir(path):
            found = os.stat(path)
            if (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (mode, owner, group):
                continue
        changed.append(path)
        if not module.check_mode:
            os.makedirs(path, mode=0o700, exist_ok=True)
            os.chown(path, owner, group)
            os.chmod(path, mode)
    return changed


def _switched(module: _Module) -> list[dict[str, str]]:
    """Switch to the wanted release. Return the difference for Ansible; the list is empty if this release is the current
    one already.
    """
    wanted = module.params["release"]
    if wanted is None or linked(wanted["root"], "current") == wanted["name"]:
        return []
    root, name = wanted["root"], wanted["name"]
    if not is_installed(root, name):
        module.fail_json(msg=f"Release {name} is not installed on this host: there is nothing to switch to.")
    before = linked(root, "current")
    if not module.check_mode:
        activate(root, name, wanted["previous"])
    return [{"before": f"release {before}\n", "after": f"release {name}\n"}]


def main() -> None:
    """Run the module."""
    module = _Module(
        argument_spec={
            "files": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str", "required": True, "no_log": False},
                    "mode": {"type": "str", "default": "0644"},
                    "group": {"type": "str", "default": "root"},
                    "owner": {"type": "str", "default": "root"},
                    "hidden": {"type": "bool", "default": False},
                },
            },
            "directories": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "mode": {"type": "str", "default": "0755"},
                    "group": {"type": "str", "default": "root"},
                    "owner": {"type": "str", "default": "root"},
                },
            },
            "systemd": {"type": "bool", "default": False},
            "release": {
                "type": "dict",
                "options": {
                    "name": {"type": "str", "required": True},
                    "previous": {"type": "str"},
                    "root": {"type": "path", "default": "/opt/odradek"},
                },
            },
        },
        supports_check_mode=True,
    )
    diff = _switched(module)
    switched = bool(diff)
    paths = _directories(module)
    wanted = []
    for file in module.params["files"]:
        content = file["content"] if file["content"].endswith("\n") else file["content"] + "\n"
        attributes = _attributes(file)
        if not _is_as_wanted(file["path"], content, *attributes):
            wanted.append((file["path"], content, *attributes))
            before = _read(file["path"]) or ""
            diff.append(
                {
                    "before": f"{_HIDDEN}\n" if file["hidden"] and before else masked(before),
                    "after": f"{_HIDDEN} and new\n" if file["hidden"] else masked(content),
                    "before_header": file["path"],
                    "after_header": file["path"],
                }
            )
    paths += [each[0] for each in wanted]
    if not module.check_mode:
        for each in wanted:
            _write(*each)
    if paths and module.params["systemd"] and not module.check_mode:
        module.run_command(["systemctl", "daemon-reload"], check_rc=True)
    module.exit_json(changed=bool(paths) or switched, paths=paths, diff=diff)


if __name__ == "__main__":
    main()
