"""The manifest of a release: the digest of its contents, and the verification of an archive by it.

`deploy/build_release.py` writes manifests, and computes the digest in the same way.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
import tempfile

MANIFEST, SIGNATURE = "MANIFEST.json", "MANIFEST.json.sig"
NAMESPACE = "odradek-release"
"""The namespace of signatures of releases, by which C(ssh-keygen) distinguishes them from other signatures."""
_CONTENTS = ("name", "python", "platform", "requirement", "pip", "wheels")
_SIGNER = "release"


class BadRelease(Exception):
    """Raised if an archive does not match its manifest or signature. The message is a sentence for the operator."""


def contents_digest(manifest: dict) -> str:
    """Return the digest of a release's contents. The commit in the manifest does not count, but the digests of the
    wheels do.
    """
    contents = {key: manifest.get(key) for key in _CONTENTS}
    return hashlib.sha256(json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def identity_of(manifest: dict) -> dict:
    """Return the digest of a release, and the commit from which it was built."""
    return {"digest": contents_digest(manifest), "commit": str(manifest.get("commit") or "unknown")}


def read_archive(archive: str) -> tuple[bytes, bytes | None]:
    """Verify an archive by its manifest. Return the manifest and its signature (None: unsigned). Raises `BadRelease`."""
    try:
        with tarfile.open(archive) as tar:
            return _verified(tar)
    except (tarfile.TarError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise BadRelease(f"{archive} is no release: {error}.") from error


def _verified(tar: tarfile.TarFile) -> tuple[bytes, bytes | None]:
    found: dict[str, str] = {}
    kept: dict[str, bytes] = {}
    for member in tar:
        if not member.isreg() or member.name in kept or member.name in found:
            raise BadRelease(f"{tar.name} has a member that no release has: {member.name}.")
        content = tar.extractfile(member)
        assert content is not None
        if member.name in (MANIFEST, SIGNATURE):
            kept[member.name] = content.read()
        else:
            found[member.name] = hashlib.file_digest(content, "sha256").hexdigest()
    if MANIFEST not in kept:
        raise BadRelease(f"{tar.name} is no release: it has no {MANIFEST}.")
    manifest = json.loads(kept[MANIFEST])
    wanted = {f"wheels/{name}": digest for name, digest in manifest["wheels"].items()}
    for name in sorted({*wanted, *found}):
        if "/" in name.removeprefix("wheels/") or wanted.get(name) != found.get(name):
            raise BadRelease(
                f"{tar.name} was changed after it was built: {name} is not what its manifest says. Copy it again, or build it anew."
            )
    if manifest.get("digest", contents_digest(manifest)) != contents_digest(manifest):
        raise BadRelease(
            f"{tar.name} was changed after it was built: its manifest has another digest than its contents."
        )
    return kept[MANIFEST], kept.get(SIGNATURE)


def verify_signature(manifest: bytes, signature: bytes | None, signers: list) -> None:
    """Verify that one of the signers has signed the manifest. Raises `BadRelease`.

    The manifest has the digests of all wheels, so its signature covers the whole release.
    """
    name = json.loads(manifest).get("name")
    if signature is None:
        raise BadRelease(
            f"Release {name} is not signed, and odradek_release_signers is set: build it with `make release ARGS='--sign KEY'`."
        )
    with tempfile.TemporaryDirectory() as work:
        allowed, signed = os.path.join(work, "signers"), os.path.join(work, "signature")
        with open(allowed, "w", encoding="utf-8") as file:
            file.writelines(f'{_SIGNER} namespaces="{NAMESPACE}" {key.strip()}\n' for key in signers)
        with open(signed, "wb") as file:
            file.write(signature)
        command = ["ssh-keygen", "-Y", "verify", "-f", allowed, "-I", _SIGNER, "-n", NAMESPACE, "-s", signed]
        try:
            done = subprocess.run(command, input=manifest, capture_output=True, check=False)
        except FileNotFoundError as error:
            raise BadRelease(
                "ssh-keygen is missing, which verifies signatures: install openssh-client."
            ) from error
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise BadRelease(
            f"Release {name} is signed by nobody in odradek_release_signers, or was changed after it was signed"
            f"{': ' + said[-1] if said else ''}."
        )
