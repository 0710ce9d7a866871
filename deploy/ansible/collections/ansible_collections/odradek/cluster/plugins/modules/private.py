#!/usr/bin/python
"""Checks directories with secrets on the control machine: git must ignore their files."""

from __future__ import annotations

DOCUMENTATION = r"""
module: private
short_description: Refuse directories of secrets that git would add
description:
  - If a directory is inside a git work tree, git must ignore it, and none of its files may be tracked.
  - Runs on the control machine, and changes nothing. The directories need not exist yet.
options:
  directories:
    description: The directories.
    type: list
    elements: path
    required: true
  what:
    description: Name of the variable with the path of the directories, for messages.
    type: str
    required: true
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Require that git ignores the secrets
  odradek.cluster.private:
    directories: [secrets]
    what: odradek_secrets
  delegate_to: localhost
"""
RETURN = r""" # """

import os
import shutil
import subprocess

from ansible.module_utils.basic import AnsibleModule


def work_tree(path: str) -> str | None:
    """Return the git work tree that contains a path, which may be missing; None if there is no work tree."""
    place = os.path.realpath(path)
    while not os.path.exists(os.path.join(place, ".git")):
        above = os.path.dirname(place)
        if above == place:
            return None
        place = above
    return place


def _git(tree: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", tree, *words], capture_output=True, text=True, check=False)


def exposed(path: str, what: str) -> str | None:
    """Return a sentence if git tracks files of this directory, or would add them; None otherwise."""
    tree = work_tree(path)
    if tree is None:
        return None
    place = os.path.realpath(path)
    elsewhere = f"or set {what} to a directory outside of it"
    # An ignore pattern for a directory also matches files in it, even before the directory exists.
    ignored = _git(tree, "check-ignore", "--quiet", "--no-index", os.path.join(place, "file"))
    if ignored.returncode == 1:
        return (
            f"{path} is for secrets, and git would take them, since the work tree {tree} does not ignore it: "
            f"write /{os.path.relpath(place, tree)}/ into {tree}/.gitignore, {elsewhere}."
        )
    tracked = _git(tree, "ls-files", "--", place)
    if ignored.returncode or tracked.returncode:
        said = (ignored.stderr or tracked.stderr).strip().splitlines()
        return f"Git does not say whether it would take secrets in {path}: {said[-1] if said else 'it gave no reason'}; {elsewhere}."
    if tracked.stdout.strip():
        return (
            f"Git has taken secrets in {path}: {', '.join(tracked.stdout.split()[:3])}. Make new ones, remove these from the "
            "repository and its history."
        )
    return None


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "directories": {"type": "list", "elements": "path", "required": True},
            "what": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    problems = []
    for path in module.params["directories"]:
        if shutil.which("git") is None:
            if work_tree(path) is not None:
                module.warn(
                    f"{path} is for secrets and inside a git work tree; git is missing here, which says whether it takes them."
                )
        elif (problem := exposed(path, module.params["what"])) is not None:
            problems.append(problem)
    if problems:
        module.fail_json(msg=" ".join(problems))
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
