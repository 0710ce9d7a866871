"""Finds files with secrets, and directories of records, that every user of the machine may read (SHELL: it reads file
modes).

A node logs a warning about them when it starts.

A file is accepted if its group may read it. The configuration of a service often belongs to root, and the service reads
it through a group of its own.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from odradek.node.configuration.node_config import NodeConfig
from odradek.node.configuration.plain_logins import FILE_KEYS
from odradek.wire.secret_fields import is_secret_key

__all__ = [
    "chmod_remedy",
    "node_directories",
    "open_secrets",
    "open_to_everybody",
    "readable_by_everybody",
]

PRIVATE_KEY_FILE = "private.key.file"
TOKEN_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
FILE_SCHEME = "file://"


def open_secrets(config_path: str, config: NodeConfig) -> list[tuple[str, str]]:
    """Find the files of a node that every user may read. Return (path, the secret in the file)."""
    return list(readable_by_everybody(_secret_files(config_path, config)))


def _secret_files(config_path: str, config: NodeConfig) -> Iterator[tuple[str, str]]:
    secrets = sorted(key for key, value in config.explicit.items() if value and is_secret_key(key))
    if secrets:
        yield config_path, ", ".join(secrets)
    for security in config.security.values():
        if security.tls is not None and security.tls.keystore_location:
            yield security.tls.keystore_location, "a private key"
    for key, value in config.explicit.items():
        if key.endswith(PRIVATE_KEY_FILE) and value:
            yield value, "a private key"
        elif key.endswith(FILE_KEYS) and value:
            yield value, "passwords"
        elif key.endswith(TOKEN_ENDPOINT) and value.startswith(FILE_SCHEME):
            yield value.removeprefix(FILE_SCHEME), "a token"


def readable_by_everybody(files: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield those files that every user may read, each once. Missing files are skipped."""
    for path, holds in dict(files).items():
        try:
            mode = os.stat(path).st_mode
        except OSError:
            # The code that reads the file reports the error.
            continue
        if stat.S_ISREG(mode) and mode & stat.S_IROTH:
            yield path, holds


def node_directories(config: NodeConfig) -> list[str]:
    """List the directories with records, users' keys, or the audit log."""
    audit = () if config.audit is None else (config.audit.directory,)
    return list(dict.fromkeys((*config.log_dirs, config.metadata_log_dir, *audit)))


def open_to_everybody(paths: Iterable[str]) -> list[str]:
    """Find the directories that every user may enter or list. Missing ones are skipped."""
    return [path for path in paths if _is_open(Path(path).absolute())]


def _is_open(path: Path) -> bool:
    try:
        # If other users cannot enter a parent directory, they cannot reach this directory.
        return bool(path.stat().st_mode & stat.S_IRWXO) and all(
            each.stat().st_mode & stat.S_IXOTH for each in path.parents
        )
    except OSError:
        # The code that reads the directory reports the error.
        return False


def chmod_remedy(paths: Iterable[str]) -> str:
    """Return the command that takes all rights on these directories away from other users."""
    return f"chmod o= {shlex.join(paths)}"
