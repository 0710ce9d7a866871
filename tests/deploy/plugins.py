"""The collection's plugins as plain modules, so that tests of their decisions do not need Ansible."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest

from tests.deploy.needs import ROOT

COLLECTIONS = ROOT / "deploy/ansible/collections"
PLUGINS = COLLECTIONS / "ansible_collections/odradek/cluster/plugins"


def plugin(kind: str, name: str, monkeypatch: pytest.MonkeyPatch | None = None) -> ModuleType:
    """Load `plugins/KIND/NAME.py`. With `monkeypatch`, empty stand-ins replace the modules that it imports from
    Ansible."""
    # Plugins import each other by the names that Ansible gives their collection.
    if str(COLLECTIONS) not in sys.path:
        sys.path.append(str(COLLECTIONS))
    if monkeypatch is not None:
        # Modules import their shared code by the collection's name.
        monkeypatch.syspath_prepend(str(COLLECTIONS))
        stand_in = cast(ModuleType, SimpleNamespace(AnsibleModule=object))
        for each in ("ansible", "ansible.module_utils", "ansible.module_utils.basic"):
            monkeypatch.setitem(sys.modules, each, stand_in)
    return loaded(PLUGINS / kind / f"{name}.py")


def loaded(path: Path) -> ModuleType:
    """Load a file as a separate module."""
    spec = importlib.util.spec_from_file_location(f"odradek_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
