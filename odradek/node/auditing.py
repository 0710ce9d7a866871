"""A node's audit log at work: opened with its directories, written by a task, closed last. PORTED."""

from __future__ import annotations

from odradek.env.ports import DiskError, Env, Log, TaskGroup
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.directories import NodeCannotStartYet
from odradek.security.audit.audit_log import AuditLog, AuditSettings
from odradek.security.audit.auditor import Auditor

__all__ = ["Auditing"]


class Auditing:
    """The node's auditor, and its file where the configuration has one."""

    def __init__(self, config: NodeConfig, env: Env, log: Log) -> None:
        self._config = config.audit
        self._env = env
        self._log = log
        self._audit_log: AuditLog | None = None
        self.auditor = Auditor(config.node_id)

    def open(self, tasks: TaskGroup) -> None:
        """Open the file, and write from now on. Raises `NodeCannotStartYet`."""
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
        """Write the lines that still wait."""
        if self._audit_log is not None:
            self.auditor.lines = None
            await self._audit_log.stop()

    def statistics(self) -> dict[str, int]:
        """Count the lines that wait, are lost, or were only counted; empty where the audit log is off."""
        return {} if self._audit_log is None else self._audit_log.statistics()
