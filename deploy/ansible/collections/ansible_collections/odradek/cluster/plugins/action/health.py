"""Runs the module `health` repeatedly, for a minute each time, until it has an answer."""

from __future__ import annotations

from ansible_collections.odradek.cluster.plugins.plugin_utils.waiting_action import WaitingAction


class ActionModule(WaitingAction):
    """The action plugin, under the name that Ansible requires."""
