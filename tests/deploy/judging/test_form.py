"""The form of the collection: argument specs, pages, the archive, and the rules of linters."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from deploy.role_pages import ROLES, pages, table, tasks
from tests.deploy.needs import ANSIBLE, ROOT

CLUSTER = ROLES.parent
PAGE = ROOT / "docs" / "deploy.md"
_READ = re.compile(r"\b(?:odradek|node|disks|host)_[a-z0-9_]+\b")
_MADE = re.compile(
    r"^\s*(?:- )?(?:register: |loop_var: )?((?:odradek|node|disks|host)_[a-z0-9_]+)(?::|$)", re.MULTILINE
)
_SET = re.compile(r"set ((?:odradek|node|disks|host)_[a-z0-9_]+)\b")
_NO_VARIABLE = re.compile(r"odradek\.cluster\.[a-z_]+|^\s*#.*$", re.MULTILINE)
"""Finds names of plugins, and comments. Neither contains variables."""
_GROUP = re.compile(r"(?:groups\.|groups: |hosts: |')(odradek_[a-z_]+)")
"""Finds the names of groups that a playbook makes. They look like variables."""


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROLES)))
def test_specs_and_pages_agree_with_the_table(path: Path) -> None:
    """The argument specs and README of each role equal the output of `python -m deploy.role_pages`."""
    assert path.read_text() == pages()[path]


def test_specs_are_of_files_of_tasks() -> None:
    """Each argument spec belongs to a file of tasks, since Ansible reads the spec when this file is included."""
    for role, entries in tasks().ENTRIES.items():
        for name in entries:
            assert (ROLES / role / "tasks" / f"{name}.yml").exists(), f"{role}: tasks/{name}.yml"


@pytest.mark.parametrize("role", table().OF_ROLES)
def test_defaults_agree_with_the_table(role: str) -> None:
    """The table has the same defaults as the role. A variable that is not in the table is on the page for operators."""
    text = (ROLES / role / "defaults" / "main.yml").read_text()
    there = dict(re.findall(r"^([a-z_]+):[ ]?(.*)$", text, re.MULTILINE))
    known = {each.name: each for each in table().OF_ROLES[role]}
    assert set(known) <= set(there)
    assert set(there) - set(known) - set(_names(PAGE.read_text())) == set()
    for name, variable in known.items():
        written, default = there[name], variable.default
        if written and "{{" not in written and not written.startswith("["):
            text = str(default).lower() if isinstance(default, bool) else str(default)
            assert written.strip('"') == text, name


def test_variables_of_the_collection_are_known_to_operators() -> None:
    """A variable that playbooks or roles read, but never set, is in the table or on the page for operators."""
    texts = [
        path.read_text()
        for folder in ("playbooks", "roles")
        for kind in ("yml", "j2")
        for path in (CLUSTER / folder).rglob(f"*.{kind}")
        if path.name != "argument_specs.yml"
    ]
    read = {name for text in texts for name in _names(_NO_VARIABLE.sub("", text))}
    made = {
        name for text in texts for name in (*_MADE.findall(text), *_SET.findall(text), *_GROUP.findall(text))
    }
    assert read - made - set(table().every_variable()) - set(_names(PAGE.read_text())) == set()


def _names(text: str) -> list[str]:
    return _READ.findall(text)


def _collection(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ANSIBLE_HOME": str(tmp_path / "home"), "ANSIBLE_NOCOLOR": "1"}
    environment.pop("ANSIBLE_CONFIG", None)
    command = [str(ANSIBLE / "bin" / "ansible-galaxy"), "collection", *words]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(
    not (ANSIBLE / "bin" / "ansible-galaxy").exists(), reason="make deploy-tools installs Ansible"
)
def test_the_collection_is_built_and_installed(tmp_path: Path) -> None:
    """`ansible-galaxy` builds an archive that contains the pages, and installs it with its playbooks."""
    built = _collection(tmp_path, "build", str(CLUSTER), "--output-path", str(tmp_path))
    assert built.returncode == 0, built.stderr
    (archive,) = tmp_path.glob("odradek-cluster-*.tar.gz")
    with tarfile.open(archive) as tar:
        names = set(tar.getnames())
        page = tar.extractfile("docs/deploy.md")
        assert page is not None
        assert page.read() == (ROOT / "docs" / "deploy.md").read_bytes()
    assert {
        "README.md",
        "CHANGELOG.md",
        "roles/node/README.md",
        "roles/node/meta/argument_specs.yml",
    } <= names
    assert not any("__pycache__" in name for name in names)
    done = _collection(
        tmp_path, "install", str(archive), "--collections-path", str(tmp_path / "there"), "--offline"
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there/ansible_collections/odradek/cluster/playbooks/deploy.yml").exists()


def test_yamllint_knows_the_form() -> None:
    """The collection has its own rules for yamllint, and the Makefile uses them."""
    assert (CLUSTER / ".yamllint").exists()
    assert ".yamllint" in (ROOT / "Makefile").read_text()


def test_the_changelog_names_every_playbook() -> None:
    """The changelog names every playbook that an operator runs."""
    parts = ("besides", "converge", "founded", "foreseen", "judge", "one_host", "preflight", "prepare")
    text = (CLUSTER / "CHANGELOG.md").read_text()
    for path in (CLUSTER / "playbooks").glob("*.yml"):
        if path.stem not in parts:
            assert re.search(rf"\b{path.stem}\b", text), path.stem


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not there")
def test_pages_of_the_archive_are_those_of_the_repository() -> None:
    """The collection's pages are links to the pages in docs, so that each text exists once."""
    for path in (CLUSTER / "docs").iterdir():
        assert path.is_symlink()
        assert path.resolve() == ROOT / "docs" / path.name


def _keys_below(lines: list[str], at: int) -> set[str]:
    """Return the keys of the block that line `at` opens, without nested keys."""
    depth = len(lines[at]) - len(lines[at].lstrip())
    keys: set[str] = set()
    inside = 0
    for line in lines[at + 1 :]:
        indent = len(line) - len(line.lstrip())
        if indent <= depth:
            break
        inside = inside or indent
        found = re.match(r" *([\w.]+):", line)
        if found is not None and indent == inside:
            keys.add(found[1])
    return keys


@pytest.mark.parametrize("path", sorted(CLUSTER.rglob("*.yml")), ids=lambda path: path.name)
def test_no_key_comes_twice_by_a_merge(path: Path) -> None:
    """Ansible warns if a block merges a key and also writes it. So no block does both."""
    lines = path.read_text().splitlines()
    anchors = {found[1]: at for at, line in enumerate(lines) if (found := re.search(r": &(\w+)$", line))}
    for at, line in enumerate(lines):
        found = re.fullmatch(r" *<<: ([*&])(\w+)", line)
        if found is not None:
            opened = max(i for i in range(at) if lines[i].rstrip().endswith(":") and _opens(lines, i, at))
            assert not _keys_below(lines, anchors[found[2]]) & _keys_below(lines, opened), (path, at + 1)


def _opens(lines: list[str], begin: int, at: int) -> bool:
    """True if the line `begin` is less indented than `at`."""
    return len(lines[begin]) - len(lines[begin].lstrip()) < len(lines[at]) - len(lines[at].lstrip())


_CONDITION = re.compile(
    r"^ *(?:- )?(?:that|when|until|failed_when|changed_when): (?:[\"']?\{\{|[>|]-?\n *\{\{)", re.MULTILINE
)


def test_conditions_are_no_templates() -> None:
    """No condition has the delimiters of templates. Ansible warns of them, and a later release will refuse them."""
    assert _CONDITION.search('    that: "{{ a }}"\n')
    assert _CONDITION.search("    when: >-\n      {{ a }}\n")
    found = [path.name for path in CLUSTER.rglob("*.yml") if _CONDITION.search(path.read_text())]
    assert found == []
