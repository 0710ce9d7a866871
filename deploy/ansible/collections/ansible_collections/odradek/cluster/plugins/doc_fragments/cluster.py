"""The options of all modules that ask a cluster: its addresses, and the command that asks."""

from __future__ import annotations


class ModuleDocFragment:
    """The fragment, in the class that Ansible looks for."""

    DOCUMENTATION = r"""
options:
  bootstrap:
    description: Addresses of brokers, HOST:PORT with commas.
    type: str
    required: true
  odradek:
    description: Path of the command.
    type: path
    default: /opt/odradek/current/bin/odradek
"""
