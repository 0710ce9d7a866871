#!/usr/bin/python
"""Makes a certificate authority on the control machine, and certificates of hosts that it signs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: certificates
short_description: Make an authority and certificates of hosts
description:
  - Runs on the control machine, where the authority's key stays. It needs the command C(openssl) there.
  - Makes certificates that are missing, signed by another authority, or about to expire. Leaves all others alone.
options:
  directory:
    description: Where the files are; only their owner may read them.
    type: path
    required: true
  hosts:
    description: Names and addresses for each certificate, by host.
    type: dict
    required: true
  common_name:
    description: The name in all certificates, by which nodes know each other.
    type: str
    default: odradek-node
  days:
    description: How long a certificate is valid.
    type: int
    default: 365
  renew_days:
    description: Certificates that expire within this number of days are replaced.
    type: int
    default: 30
  force:
    description: Replace all certificates of hosts.
    type: bool
    default: false
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Certificates
  odradek.cluster.certificates:
    directory: secrets
    hosts:
      stork: [stork, 192.0.2.11]
  delegate_to: localhost
"""
RETURN = r"""
made:
  description: Files that were made.
  type: list
  elements: str
  returned: always
"""

import ipaddress
import os
import re
import secrets
import shutil
import subprocess
import tempfile

from ansible.module_utils.basic import AnsibleModule

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
_AUTHORITY_DAYS = 3650
_DAY_SECONDS = 86400


def alternative_names(names: list) -> str:
    """Format names and addresses for a certificate's subjectAltName."""
    found = []
    for name in dict.fromkeys(map(str, names)):
        try:
            found.append(f"IP:{ipaddress.ip_address(name)}")
        except ValueError:
            found.append(f"DNS:{name}")
    return ",".join(found)


def _openssl(*words: str) -> str:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=True, umask=0o077)
    return done.stdout


def make_authority(directory: str, common_name: str) -> None:
    """Make the authority's key and certificate. The certificate is written last, so if it exists, the key does, too."""
    with tempfile.TemporaryDirectory(dir=directory) as work:
        key, certificate = os.path.join(work, "key"), os.path.join(work, "certificate")
        _openssl(
            *("req", "-x509", *_KEY, "-keyout", key, "-out", certificate, "-days", str(_AUTHORITY_DAYS)),
            *("-subj", f"/CN={common_name} authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            *("-addext", "basicConstraints=critical,CA:TRUE,pathlen:0"),
        )
        os.rename(key, os.path.join(directory, "authority.key"))
        os.rename(certificate, os.path.join(directory, "authority.pem"))


def make_certificate(directory: str, host: str, names: list, common_name: str, days: int) -> None:
    """Make a host's key and certificate in one file, which is replaced atomically."""
    authority = os.path.join(directory, "authority.pem")
    with tempfile.TemporaryDirectory(dir=directory) as work:
        key, request, certificate = (os.path.join(work, name) for name in ("key", "request", "certificate"))
        extensions = os.path.join(work, "extensions")
        with open(extensions, "w", encoding="utf-8") as file:
            file.write(
                f"subjectAltName={alternative_names(names)}\nbasicConstraints=critical,CA:FALSE\n"
                "keyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
            )
        _openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={common_name}")
        _openssl(
            *("x509", "-req", "-in", request, "-CA", authority, "-out", certificate, "-days", str(days)),
            *("-CAkey", os.path.join(directory, "authority.key"), "-extfile", extensions),
            *("-set_serial", str(secrets.randbits(127))),
        )
        together = os.path.join(work, "together")
        with open(together, "w", encoding="utf-8", opener=_private) as out:
            for part in (key, certificate):
                with open(part, encoding="utf-8") as file:
                    out.write(file.read())
        os.rename(together, os.path.join(directory, f"{host}.pem"))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def what_is_wrong(directory: str, host: str, names: list, renew_days: int) -> str | None:
    """Return the reason why a host needs a new certificate; None if it does not."""
    path = os.path.join(directory, f"{host}.pem")
    if not os.path.exists(path):
        return "it has none"
    try:
        _openssl("verify", "-CAfile", os.path.join(directory, "authority.pem"), path)
        told = _openssl("x509", "-in", path, "-noout", "-ext", "subjectAltName")
    except subprocess.CalledProcessError:
        return "the authority has not signed it, or it has expired"
    if set(re.findall(r"(?:DNS|IP Address):([^,\s]+)", told)) != set(map(str, names)):
        return "it has other names"
    try:
        _openssl("x509", "-in", path, "-noout", "-checkend", str(renew_days * _DAY_SECONDS))
    except subprocess.CalledProcessError:
        return "it expires soon"
    return None


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "required": True},
            "hosts": {"type": "dict", "required": True},
            "common_name": {"type": "str", "default": "odradek-node"},
            "days": {"type": "int", "default": 365},
            "renew_days": {"type": "int", "default": 30},
            "force": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    directory = params["directory"]
    if shutil.which("openssl") is None:
        module.fail_json(
            msg="Certificates are made by `openssl`, which this control machine lacks: install it, "
            "or provide your own certificates (odradek_certificates)."
        )
    made = []
    try:
        if not os.path.exists(os.path.join(directory, "authority.pem")):
            made.append("authority.pem")
            if not module.check_mode:
                os.makedirs(directory, mode=0o700, exist_ok=True)
                make_authority(directory, params["common_name"])
        for host, names in sorted(params["hosts"].items()):
            if made[:1] == ["authority.pem"] and module.check_mode:
                made.append(f"{host}.pem")
                continue
            if params["force"] or what_is_wrong(directory, host, names, params["renew_days"]):
                made.append(f"{host}.pem")
                if not module.check_mode:
                    make_certificate(directory, host, names, params["common_name"], params["days"])
    except subprocess.CalledProcessError as error:
        module.fail_json(msg=f"openssl cannot make a certificate: {error.stderr.strip()[-500:]}")
    module.exit_json(changed=bool(made), made=made)


if __name__ == "__main__":
    main()
