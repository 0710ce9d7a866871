"""Checks and folds must not use the product's own rules. Lists define what they may import."""

from __future__ import annotations

import ast
from pathlib import Path

CHECKS = Path(__file__).parents[3] / "sim" / "checks"
DECODING = (
    "odradek.data_plane.groups.records",
    "odradek.data_plane.log.directory.checkpoints",
    "odradek.data_plane.log.segments.segment_index",
    "odradek.env.ports",
    "odradek.metadata_quorum.replica.checkpoint_files",
    "odradek.metadata_quorum.replica.metadata_batches",
    "odradek.wire",
)
"""Packages and modules that decode bytes."""
HOLDERS = (
    "odradek.metadata_quorum.image.access_image",
    "odradek.metadata_quorum.image.metadata_image",
    "odradek.metadata_quorum.raft.roles",
    "odradek.metadata_quorum.raft.voters",
    "odradek.security.acls.rules",
)
"""Modules with plain values and protocol constants."""
FUNCTIONS = {
    (
        "odradek.data_plane.log.directory.log_dir",
        "parse_partition_name",
    ): "a directory's name as a topic and a number",
    (
        "odradek.metadata_quorum.image.image_records",
        "records_of",
    ): "what a node would write as a snapshot is itself compared",
    (
        "odradek.metadata_quorum.replica.publisher",
        "difference",
    ): "the changes that a node publishes when it loads a snapshot are themselves compared",
    (
        "odradek.security.salt_forms",
        "form_of",
    ): "counts of forms are compared, and a form is a class of salts",
}
"""Other functions that may be imported, each with its reason. Classes and constants are allowed."""


def imported(root: Path) -> set[tuple[str, str]]:
    """Return (module, name) for all that a folder's modules import from the product."""
    return {
        (node.module, each.name)
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("odradek.")
        for each in node.names
    }


def stands_under(module: str, prefixes: tuple[str, ...]) -> bool:
    """True if the module is listed, or is in a listed package."""
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def test_checks_import_no_rules() -> None:
    """A function may be imported only if it decodes bytes or is listed with a reason."""
    functions = {
        (module, name)
        for module, name in imported(CHECKS)
        if name.islower() and not stands_under(module, (*DECODING, *HOLDERS))
    }
    assert functions == set(FUNCTIONS)


def test_no_check_computes_with_state_machines() -> None:
    """No check uses the product's builders or state machines. `derived` may look at a few listed classes."""
    banned = {"ImageBuilder", "Latest", "AclIndex", "BrokerConfigLayers", "ClientQuotas", "BATCHES_KEPT"}
    assert {name for _, name in imported(CHECKS)} & banned == set()


def test_folds_import_what_decodes() -> None:
    """Folds import only messages and the values that they are compared with."""
    folds = {
        module for module, _ in imported(CHECKS / "folds") if not stands_under(module, (*DECODING, *HOLDERS))
    }
    assert folds == set()
