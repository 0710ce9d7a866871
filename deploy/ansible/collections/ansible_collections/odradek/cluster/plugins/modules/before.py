#!/usr/bin/python
"""Keeps a copy of a host's state from before a roll-out: its release and its files. The copy exists until the roll-out
is complete.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: before
short_description: Keep, restore or forget the state of a host before a roll-out
description:
  - A state that is kept already is never replaced. So after an interruption the kept state is that from before the first run.
options:
  state:
    description:
      - C(kept) copies the files and the names of the releases before a change.
      - C(restored) restores them; the copies stay.
      - C(forgotten) removes the copies once the roll-out is complete.
    type: str
    choices: [kept, restored, forgotten]
    required: true
  paths:
    description: Files that the roll-out may change.
    type: list
    elements: path
    default: []
  directory:
    description: Directory of the copies.
    type: path
    default: /var/lib/odradek-before
  root:
    description: Directory of the releases.
    type: path
    default: /opt/odradek
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Keep the state from before the roll-out
  odradek.cluster.before:
    state: kept
    paths: [/etc/odradek/node-1.properties]
"""
RETURN = r"""
paths:
  description: Files that were kept, or put back, now.
  type: list
  elements: str
  returned: always
"""

import json
import os
import shutil

from ansible.module_utils.basic import AnsibleModule

_RELEASES = "releases.json"
_LINKS = ("current", "previous")
_ABSENT = ".absent"


def _kept(directory: str, path: str) -> str:
    return os.path.join(directory, path.replace("/", "%"))


def _copy(source: str, target: str) -> None:
    """Copy a file with its mode and owner. The target is replaced atomically."""
    new = f"{target}.new"
    shutil.copy2(source, new)
    found = os.stat(source)
    os.chown(new, found.st_uid, found.st_gid)
    descriptor = os.open(new, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(new, target)


def _write(path: str, content: str) -> None:
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.new", path)


def _links(root: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in _LINKS:
        try:
            found[name] = os.readlink(os.path.join(root, name))
        except OSError:
            found[name] = None
    return found


def keep(directory: str, paths: list, root: str) -> list:
    """Copy files to the directory, unless they are kept already; return their paths. The file of releases is written
    last: it marks the copy as complete.
    """
    if not os.path.exists(os.path.join(directory, _RELEASES)):
        # An earlier run was interrupted while it copied, before its first change. So its copies may be outdated.
        shutil.rmtree(directory, ignore_errors=True)
    new = [
        path
        for path in paths
        if not os.path.exists(_kept(directory, path)) and not os.path.exists(_kept(directory, path) + _ABSENT)
    ]
    os.makedirs(directory, mode=0o700, exist_ok=True)
    for path in new:
        if os.path.exists(path):
            _copy(path, _kept(directory, path))
        else:
            _write(_kept(directory, path) + _ABSENT, "")
    if not os.path.exists(os.path.join(directory, _RELEASES)):
        _write(os.path.join(directory, _RELEASES), json.dumps(_links(root)))
    return new


def _is_same(one: str, other: str) -> bool:
    if not os.path.exists(other):
        return False
    with open(one, "rb") as first, open(other, "rb") as second:
        if first.read() != second.read():
            return False
    found, wanted = os.stat(other), os.stat(one)
    return (found.st_mode, found.st_uid, found.st_gid) == (wanted.st_mode, wanted.st_uid, wanted.st_gid)


def restore(directory: str, root: str) -> list:
    """Restore the kept releases and files. Return the paths that have changed."""
    releases = os.path.join(directory, _RELEASES)
    if not os.path.exists(releases):
        return []
    done = []
    for name in sorted(os.listdir(directory)):
        kept, path = os.path.join(directory, name), name.replace("%", "/")
        if not path.startswith("/") or name.endswith(".new"):
            continue
        if path.endswith(_ABSENT):
            path = path.removesuffix(_ABSENT)
            if os.path.exists(path):
                os.unlink(path)
                done.append(path)
        elif not _is_same(kept, path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _copy(kept, path)
            done.append(path)
    with open(releases, encoding="utf-8") as file:
        wanted = json.load(file)
    for name, target in wanted.items():
        if target is not None and _links(root)[name] != target:
            _switch(os.path.join(root, name), target)
            done.append(os.path.join(root, name))
    return done


def _switch(link: str, target: str) -> None:
    new = os.path.join(os.path.dirname(link), f".{os.path.basename(link)}.new")
    if os.path.lexists(new):
        os.unlink(new)
    os.symlink(target, new)
    os.rename(new, link)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["kept", "restored", "forgotten"], "required": True},
            "paths": {"type": "list", "elements": "path", "default": []},
            "directory": {"type": "path", "default": "/var/lib/odradek-before"},
            "root": {"type": "path", "default": "/opt/odradek"},
        },
        supports_check_mode=True,
    )
    params = module.params
    directory, paths = params["directory"], []
    if module.check_mode:
        module.exit_json(changed=False, paths=[])
    if params["state"] == "kept":
        paths = keep(directory, params["paths"], params["root"])
        # Report no change, because a copy does not affect the running nodes.
        module.exit_json(changed=False, paths=paths)
    if params["state"] == "restored":
        paths = restore(directory, params["root"])
        if paths:
            module.run_command(["systemctl", "daemon-reload"], check_rc=True)
    else:
        # Remove the file of releases first: without it, the copy counts as incomplete.
        releases = os.path.join(directory, _RELEASES)
        if os.path.exists(releases):
            os.unlink(releases)
        shutil.rmtree(directory, ignore_errors=True)
    module.exit_json(changed=bool(paths), paths=paths)


if __name__ == "__main__":
    main()
