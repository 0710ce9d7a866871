"""Back up the metadata log of a node on this host: copy it, verify the copy, and encrypt it if a recipient is given.

    /opt/odradek/current/bin/python backup.py --properties FILE --cluster NAME [--directory DIR] [--keep N] [--recipient CERTIFICATE]

Prints the path of the new file, which only root can read. A timer and the playbook `backup` run this program. The log
grows while it is copied, so the copy is repeated if its end is incomplete. If a backup fails, nothing of it remains.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

_ODRADEK = Path(sys.executable).with_name("odradek")
_TRIES = 5
_LOG = "__cluster_metadata-0"
PLAIN, ENCRYPTED = ".tar.gz", ".tar.gz.cms"


class CannotBackUp(Exception):
    """Raised if no backup can be made. The message has the reason."""


def metadata_directory(properties: str) -> Path:
    """Return the directory of the metadata log, from the text of a node's properties file. Raises `CannotBackUp`."""
    found = dict(
        line.split("=", 1) for line in properties.splitlines() if "=" in line and line[:1] not in "#!"
    )
    directory = found.get("metadata.log.dir") or found.get("log.dirs", "").split(",")[0]
    if not directory.strip():
        raise CannotBackUp("the properties file has no log.dirs")
    return Path(directory.strip())


def copy_log(source: Path, target: Path, odradek: Path = _ODRADEK) -> None:
    """Copy the metadata log and its directory's meta.properties, and verify the copy. Raises `CannotBackUp`."""
    for attempt in range(_TRIES):
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(source / _LOG, target / _LOG)
            for each in (source / "meta.properties", *source.glob("*.checkpoint")):
                shutil.copy2(each, target)
            done = subprocess.run(
                [odradek, "log", "dump", "--verify", target / _LOG],
                capture_output=True,
                text=True,
                check=False,
            )
            said = (done.stderr or done.stdout).strip()
        except (OSError, shutil.Error) as error:
            # A segment was deleted during the copy, or the disk has failed.
            done, said = None, str(error)
        if done is not None and done.returncode == 0:
            return
        if attempt < _TRIES - 1:
            time.sleep(1)
    raise CannotBackUp(f"the copy of {source} is not whole after {_TRIES} tries: {said[-500:]}")


def encrypted(content: bytes, certificate: bytes) -> bytes:
    """Encrypt the content for the owner of a certificate, as CMS: `openssl cms -decrypt` decrypts it. Raises
    `CannotBackUp`.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.ciphers.algorithms import AES256
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.hazmat.primitives.serialization.pkcs7 import PKCS7EnvelopeBuilder, PKCS7Options

    try:
        builder = PKCS7EnvelopeBuilder().add_recipient(x509.load_pem_x509_certificate(certificate))
    except (ValueError, TypeError) as error:
        raise CannotBackUp(f"odradek_backup_recipient is no certificate with an RSA key: {error}") from error
    envelope = builder.set_data(content).set_content_encryption_algorithm(AES256)
    return envelope.encrypt(Encoding.DER, [PKCS7Options.Binary])


def back_up(args: argparse.Namespace) -> Path:
    """Make a backup, remove all backups except the `keep` newest, and return the path of the new backup. Raises
    `CannotBackUp`.
    """
    args.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    stem = f"{args.cluster}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    with tempfile.TemporaryDirectory(dir=args.directory, prefix=".new-") as work:
        copy, whole = Path(work, "copy"), Path(work, "whole")
        copy_log(metadata_directory(args.properties.read_text()), copy)
        with tarfile.open(whole, "w:gz") as tar:
            tar.add(copy, ".")
        name = stem + PLAIN
        if args.recipient is not None:
            whole.write_bytes(encrypted(whole.read_bytes(), args.recipient.read_bytes()))
            name = stem + ENCRYPTED
        with whole.open("rb") as file:
            os.fsync(file.fileno())
        whole.rename(args.directory / name)
    for old in old_backups(args.directory, args.cluster, args.keep):
        old.unlink()
    return args.directory / name


def old_backups(directory: Path, cluster: str, keep: int) -> list[Path]:
    """List the backups of a cluster except the `keep` newest; empty if `keep` is 0, because all are kept then."""
    found = sorted(
        each for end in (PLAIN, ENCRYPTED) for each in directory.iterdir() if _is_of(each.name, cluster, end)
    )
    return found[:-keep] if keep else []


def _is_of(name: str, cluster: str, end: str) -> bool:
    moment = name.removeprefix(f"{cluster}-").removesuffix(end)
    return name == f"{cluster}-{moment}{end}" and len(moment) == 16 and moment[:8].isdigit()


def main() -> int:
    """Run the backup from the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="back up the metadata log of a node of this host")
    parser.add_argument(
        "--properties", type=Path, required=True, metavar="FILE", help="properties file of the node"
    )
    parser.add_argument(
        "--cluster", required=True, metavar="NAME", help="first part of the backup's file name"
    )
    parser.add_argument("--directory", type=Path, default=Path("/var/backups/odradek"))
    parser.add_argument(
        "--keep",
        type=int,
        default=0,
        metavar="N",
        help="keep only the N newest backups (default: 0, keep all)",
    )
    parser.add_argument(
        "--recipient",
        type=Path,
        metavar="CERTIFICATE",
        help="encrypt the backup for the owner of this certificate",
    )
    args = parser.parse_args()
    os.umask(0o077)
    try:
        print(back_up(args))
    except (CannotBackUp, OSError) as error:
        print(f"no backup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
