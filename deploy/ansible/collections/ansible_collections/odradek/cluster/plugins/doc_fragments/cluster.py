"""Documentation of the options that all modules for a cluster share: the cluster's addresses, and the path of the
command.
"""

from __future__ import annotations


class ModuleDocFragment:
    """The documentation fragment, in a class with the name that Ansible requires."""

    DOCUMENTATION = r"""
options:
  bootstrap:
    description: Addresses of brokers, HOST:PORT separated by commas.
    type: str
    required: true
  odradek:
    description: Path of the command.
    type: path
    default: /opt/odradek/current/bin/odradek
"""
