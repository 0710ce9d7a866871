"""The module `gate`, asked for a minute at a time."""

from __future__ import annotations

from ansible_collections.odradek.cluster.plugins.plugin_utils.waiting_action import WaitingAction


class ActionModule(WaitingAction):
    """The class that Ansible looks for."""
