#!/usr/bin/python
"""Documentation of the action plugin `awaited`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: awaited
short_description: Run a command of Odradek that may take a day
description:
  - Runs the command again and again with C(--timeout) of a minute, until it is done. After each run a line reports what is
    left, and when the command may end.
  - The command must continue the work that it has begun. So a run may be ended with Ctrl-C, and the same playbook continues.
  - Runs on the control machine, and calls the command on the host by C(ansible.builtin.command).
options:
  argv:
    description: The command with its options, except C(--json) and C(--timeout).
    type: list
    elements: str
    required: true
  seconds:
    description: Give up after this many seconds. Moves that have begun continue.
    type: int
    required: true
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Move partitions to other brokers
  odradek.cluster.awaited:
    argv: [/opt/odradek/current/bin/odradek, broker, drain, 3, --execute]
    seconds: 86400
"""
RETURN = r"""
document:
  description: What the command has printed as JSON.
  type: dict
  returned: always
rc:
  description: Its exit status.
  type: int
  returned: always
"""
