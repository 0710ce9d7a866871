"""The collection's plugins as plain modules: Ansible itself is not needed to test what they decide."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest

from tests.deploy.needs import ROOT

COLLECTIONS = ROOT / "deploy/ansible/collections"
PLUGINS = COLLECTIONS / "ansible_collections/odradek/cluster/plugins"


def plugin(kind: str, name: str, monkeypatch: pytest.MonkeyPatch | None = None) -> ModuleType:
    """Load `plugins/KIND/NAME.py`; what it would take from Ansible stands empty."""
    spec = importlib.util.spec_from_file_location(f"odradek_{kind}_{name}", PLUGINS / kind / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if monkeypatch is not None:
        # What modules share is imported by the collection's name.
        monkeypatch.syspath_prepend(str(COLLECTIONS))
        stand_in = cast(ModuleType, SimpleNamespace(AnsibleModule=object))
        for each in ("ansible", "ansible.module_utils", "ansible.module_utils.basic"):
            monkeypatch.setitem(sys.modules, each, stand_in)
    spec.loader.exec_module(module)
    return module
