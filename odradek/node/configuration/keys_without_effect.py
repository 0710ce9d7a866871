"""Kafka's keys that a properties file may set although they have no effect here, each with the reason.

A starting node writes one warning, which names the keys of this kind in its properties file.
docs/configuration.md lists all of them. A test compares this table with the code that reads keys. So a change
that begins to read a key must remove it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["KEYS_WITHOUT_EFFECT", "warning_about"]

_BY_REASON: Mapping[str, tuple[str, ...]] = {
    "GSSAPI, and client assertions for OAUTHBEARER, are not supported": (
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal.to.local.rules",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.jitter",
        "sasl.oauthbearer.assertion.algorithm",
        "sasl.oauthbearer.assertion.claim.aud",
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "sasl.oauthbearer.assertion.claim.iss",
        "sasl.oauthbearer.assertion.claim.jti.include",
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "sasl.oauthbearer.assertion.claim.sub",
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.template.file",
        "security.providers",
    ),
    "Python's `ssl` offers no such choice": (
        "ssl.keymanager.algorithm",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    ),
    "there is no tiered storage": (
        "follower.fetch.last.tiered.offset.enable",
        "log.local.retention.bytes",
        "log.local.retention.ms",
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.index.file.cache.ttl.ms",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.copy.quota.window.num",
        "remote.log.manager.copy.quota.window.size.seconds",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.fetch.max.bytes.per.second",
        "remote.log.manager.fetch.quota.window.num",
        "remote.log.manager.fetch.quota.window.size.seconds",
        "remote.log.manager.follower.thread.pool.size",
        "remote.log.manager.task.interval.ms",
        "remote.log.manager.task.retry.backoff.max.ms",
        "remote.log.manager.task.retry.backoff.ms",
        "remote.log.manager.task.retry.jitter",
        "remote.log.manager.thread.pool.size",
        "remote.log.metadata.custom.metadata.max.bytes",
        "remote.log.metadata.manager.class.name",
        "remote.log.metadata.manager.class.path",
        "remote.log.metadata.manager.impl.prefix",
        "remote.log.metadata.manager.listener.name",
        "remote.log.reader.max.pending.tasks",
        "remote.log.reader.threads",
        "remote.log.storage.manager.class.name",
        "remote.log.storage.manager.class.path",
        "remote.log.storage.manager.impl.prefix",
    ),
    "there are no share groups": (
        "group.share.assignors",
        "group.share.initialize.retry.interval.ms",
        "group.share.max.share.sessions",
        "group.share.max.size",
        "group.share.persister.class.name",
        "share.coordinator.append.linger.ms",
        "share.coordinator.cached.buffer.max.bytes",
        "share.coordinator.cold.partition.snapshot.interval.ms",
        "share.coordinator.load.buffer.size",
        "share.coordinator.snapshot.update.records.per.snapshot",
        "share.coordinator.state.topic.compression.codec",
        "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.num.partitions",
        "share.coordinator.state.topic.prune.interval.ms",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.segment.bytes",
        "share.coordinator.threads",
        "share.coordinator.write.timeout.ms",
        "share.fetch.purgatory.purge.interval.requests",
    ),
    "streams groups are not served": ("group.streams.max.size",),
    "the limit for moves is measured over one second, and each target directory has one task": (
        "alter.log.dirs.replication.quota.window.num",
        "alter.log.dirs.replication.quota.window.size.seconds",
        "num.replica.alter.log.dirs.threads",
    ),
    "this version has no such pool of threads, queue or purgatory": (
        "background.threads",
        "delete.records.purgatory.purge.interval.requests",
        "fetch.purgatory.purge.interval.requests",
        "group.coordinator.append.linger.ms",
        "group.coordinator.background.threads",
        "group.coordinator.cached.buffer.max.bytes",
        "group.coordinator.threads",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
        "offsets.load.buffer.size",
        "producer.purgatory.purge.interval.requests",
        "queued.max.requests",
        "transaction.state.log.load.buffer.size",
    ),
    "replication throttles are measured over one second": (
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
    ),
    "metrics are served as a page, without samples and reporters (docs/metrics.md)": (
        "kafka.metrics.polling.interval.secs",
        "kafka.metrics.reporters",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
    ),
    "a controller writes at once all records that arrived during the previous sync, so there is no linger": (
        "controller.quorum.append.linger.ms",
    ),
    "the sizes of snapshot chunks and of batches are fixed": (
        "controller.quorum.fetch.snapshot.max.bytes",
        "internal.metadata.max.batch.size.in.bytes",
    ),
    "the metadata log begins a segment with each snapshot, or by size (`metadata.log.segment.bytes`)": (
        "internal.metadata.log.segment.bytes",
        "metadata.log.segment.ms",
    ),
    "no records are written only to show that the controller is alive": ("metadata.max.idle.interval.ms",),
    "files of the metadata log are removed at once": ("internal.metadata.delete.delay.millis",),
    "files are never preallocated": ("log.preallocate",),
    "this checkpoint is written with the other checkpoints": (
        "log.flush.start.offset.checkpoint.interval.ms",
    ),
    "the first check comes one period after the start": ("log.initial.task.delay.ms",),
    "the kernel decides, or this version has a fixed value": (
        "controller.socket.timeout.ms",
        "replica.socket.receive.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "socket.listen.backlog.size",
    ),
    "slow decisions are not logged": (
        "controller.performance.always.log.threshold.ms",
        "controller.performance.sample.period.ms",
    ),
    "a start has no time limit (but see `initial.broker.registration.timeout.ms`)": (
        "server.max.startup.time.ms",
    ),
    "there are no unstable versions": (
        "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
    ),
}
KEYS_WITHOUT_EFFECT: Mapping[str, str] = {key: reason for reason, keys in _BY_REASON.items() for key in keys}


def warning_about(keys: Iterable[str]) -> str | None:
    """Write one line that names the keys without effect among `keys`, in their order; None if all of `keys`
    have an effect.
    """
    named = [key for key in keys if key in KEYS_WITHOUT_EFFECT]
    if not named:
        return None
    return f"these keys have no effect here: {', '.join(named)}. docs/configuration.md gives the reasons"
