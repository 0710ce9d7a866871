"""The audit log of a running node: its file is opened with the directories, written by a task, and closed last.
PORTED.
"""

from __future__ import annotations

from odradek.env.ports import DiskError, Env, Log, TaskGroup
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.directories import NodeCannotStartYet
from odradek.security.audit.audit_log import AuditLog, AuditSettings
from odradek.security.audit.auditor import Auditor

__all__ = ["Auditing"]


class Auditing:
    """The node's auditor, and its audit log file if the configuration has one."""

    def __init__(self, config: NodeConfig, env: Env, log: Log) -> None:
        self._config = config.audit
        self._env = env
        self._log = log
        self._audit_log: AuditLog | None = None
        self.auditor = Auditor(config.node_id)

    def open(self, tasks: TaskGroup) -> None:
        """Open the file and start the task that writes it. Raises `NodeCannotStartYet` if the directory cannot be
        used.
        """
        config = self._config
        if config is None:
            return
        try:
            directory = self._env.open_dir(config.directory, create=True)
        except DiskError as error:
            raise NodeCannotStartYet(
                f"the audit log cannot be written: {error}; set odradek.audit.directory to a writable "
                "directory, or odradek.audit.enabled=false"
            ) from error
        settings = AuditSettings(config.bytes_max, config.files_max, config.refusals_files_max)
        audit_log = self._audit_log = AuditLog(self._env, self._log, directory, settings)
        self.auditor.lines = audit_log
        tasks.start_soon(audit_log.run, name="audit log")

    async def close(self) -> None:
        """Write the lines that are still queued, and stop."""
        if self._audit_log is not None:
            self.auditor.lines = None
            await self._audit_log.stop()

    def statistics(self) -> dict[str, int]:
        """Return how many lines are queued, were lost, or were counted without being written; empty if the audit log is
        off.
        """
        return {} if self._audit_log is None else self._audit_log.statistics()
