#!/usr/bin/python
"""Documentation of the action plugin `awaited`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: awaited
short_description: Run a command of Odradek that may take a day
description:
  - Runs the command in pieces of a minute with C(--timeout), until it is done. After each piece a line says what is left, and
    when it may end.
  - The command must take up what it has begun. So the wait may be left with Ctrl-C, and taken up by the same playbook.
  - Runs on the control machine, and asks the host by C(ansible.builtin.command).
options:
  argv:
    description: The command with its options, but C(--json) and C(--timeout).
    type: list
    elements: str
    required: true
  seconds:
    description: Give up after so long; what has begun goes on.
    type: int
    required: true
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Partitions move to other brokers
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
