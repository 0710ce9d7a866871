"""ACLs and tokens in the metadata log that this node does not enforce: it refuses to start, or logs a warning.

Kafka may have written ACLs and tokens. A node with an authorizer enforces the ACLs. Without one it would let
every client do everything, perhaps unnoticed. So it starts only if `odradek.start.without.acls` is true. ACLs
may also arrive later, from Kafka's controllers in a mixed cluster. They do not end a running node, because
all nodes would end at once. Each node writes an error to its log, and refuses to start the next time.
"""

from __future__ import annotations

from odradek.env.ports import Log
from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.configuration.own_keys import START_WITHOUT_ACLS
from odradek.node.directories import NodeCannotStart

__all__ = ["UnenforcedRules"]


class UnenforcedRules:
    """Checks images for rules that are not enforced: `check` at the start, then `apply` for every newer image."""

    def __init__(self, config: NodeConfig, log: Log) -> None:
        self._config = config
        self._log = log
        self._acls = 0

    def check(self, image: MetadataImage) -> None:
        """Raise `NodeCannotStart` if there are ACLs that this node does not enforce, and `odradek.start.without.acls`
        is false. Log a warning about other rules.
        """
        access = image.access
        self._acls = len(access.acls)
        if self._acls and self._config.authorizer is None and not self._config.start_without_acls:
            raise NodeCannotStart(
                f"the metadata log holds ACLs ({self._acls}), which this node does not enforce, so "
                "every client may do everything. Set authorizer.class.name to enforce the ACLs "
                f"(docs/acls.md). To start without enforcement, set {START_WITHOUT_ACLS}=true and "
                "start again"
            )
        if self._unenforced(image):
            self._log_unenforced(image)

    def apply(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Check a newer image: log an error when it has the first ACLs."""
        if not delta.access_changed:
            return
        before, self._acls = self._acls, len(image.access.acls)
        if self._acls and not before and self._config.authorizer is None:
            self._log_unenforced(image)

    def _unenforced(self, image: MetadataImage) -> bool:
        """True if the image has ACLs or tokens that this node does not enforce."""
        access = image.access
        if self._config.authorizer is None and access.acls:
            return True
        return bool(self._useless_tokens(image))

    def _useless_tokens(self, image: MetadataImage) -> int:
        """Count the tokens that cannot be used to log in, because this node has no key for them."""
        return len(image.access.delegation_tokens) if self._config.token_secrets is None else 0

    def _log_unenforced(self, image: MetadataImage) -> None:
        access = image.access
        acls = len(access.acls) if self._config.authorizer is None else 0
        log = self._log.error if acls else self._log.warning
        log(
            "rules.not_enforced",
            acls=acls,
            delegation_tokens=self._useless_tokens(image),
        )
