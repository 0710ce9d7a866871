"""Checks and folds use nothing of the product that decides: a list says what they may import."""

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
"""Packages and modules that turn bytes into values."""
HOLDERS = (
    "odradek.metadata_quorum.image.access_image",
    "odradek.metadata_quorum.image.metadata_image",
    "odradek.metadata_quorum.raft.roles",
    "odradek.metadata_quorum.raft.voters",
    "odradek.security.acls.rules",
)
"""Modules whose names are values, and numbers of the protocol."""
FUNCTIONS = {
    (
        "odradek.data_plane.log.directory.log_dir",
        "parse_partition_name",
    ): "a directory's name as a topic and a number",
    (
        "odradek.security.salt_forms",
        "form_of",
    ): "counts of forms are compared, and a form is a class of salts",
}
"""Functions from elsewhere, each with its reason. Classes are looked at, and constants are bounds and names of files."""


def imported(root: Path) -> set[tuple[str, str]]:
    """Return module and name of all that the modules of a folder import from the product."""
    return {
        (node.module, each.name)
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("odradek.")
        for each in node.names
    }


def stands_under(module: str, prefixes: tuple[str, ...]) -> bool:
    """True if a module is one of these, or in one of these packages."""
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def test_checks_import_no_rules() -> None:
    """A function comes from where bytes are decoded, or has a reason; no other name is in small letters."""
    functions = {
        (module, name)
        for module, name in imported(CHECKS)
        if name.islower() and not stands_under(module, (*DECODING, *HOLDERS))
    }
    assert functions == set(FUNCTIONS)


def test_no_check_computes_with_state_machines() -> None:
    """Builders and state machines of the product are in no check: `derived` names a few classes that it looks at."""
    banned = {"ImageBuilder", "Latest", "AclIndex", "BrokerConfigLayers", "ClientQuotas", "BATCHES_KEPT"}
    assert {name for _, name in imported(CHECKS)} & banned == set()


def test_folds_import_what_decodes() -> None:
    """A fold of records knows messages, and the values that it is held against."""
    folds = {
        module for module, _ in imported(CHECKS / "folds") if not stands_under(module, (*DECODING, *HOLDERS))
    }
    assert folds == set()
