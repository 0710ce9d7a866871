"""The bill of materials (SBOM) of a release: CycloneDX 1.6 in JSON.

It lists our wheel and each wheel that a node needs: version, licence, dependencies, and the SHA-256 of the wheel in the
release. Each wheel is a component of its own. The qualifier `file_name` of its package URL has the name of the wheel, as
the specification of package URLs says for PyPI. A release for several Pythons has several wheels of some projects. A
property names the Pythons that install the wheel, and a wheel depends on wheels that these Pythons install.

Another property has the locked hashes of the project's wheels for other Pythons and platforms. Each build of the same
release gives the same bytes. So the time in the bill is that of the commit, and the serial number is a digest of the
wheels.
"""

from __future__ import annotations

import email.message
import email.parser
import hashlib
import json
import uuid
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from deploy.lock_wheels import normal

__all__ = ["bill"]

INSTALLER = "pip"
"""The project that installs all other projects on a host. Its wheel is in the release, but no code of a node imports
it.
"""
_NAMESPACE = uuid.UUID("6f64726f-6465-4b00-8000-000000000000")


def bill(
    wheels: list[Path], locked: Mapping[str, list[str]], commit: str, when: datetime, pythons: Sequence[str]
) -> str:
    """Return the text of the bill of materials for these wheels. One of the wheels is our own.

    `locked` has the SHA-256 of all wheels of each project's version, by normalized name. `when` is the time of the
    commit, with a time zone. `pythons` are the versions of the hosts' Pythons, such as 3.13.
    """
    metadata = {path: _metadata(path) for path in sorted(wheels)}
    names = {path: normal(found["Name"]) for path, found in metadata.items()}
    installed = {python: _installed(names, python) for python in pythons}
    made = {
        path: _component(
            path,
            metadata[path],
            [each for each, chosen in installed.items() if chosen[name] == path],
            locked.get(name, []),
        )
        for path, name in names.items()
    }
    (ours,) = (made[path] for path, name in names.items() if name == "odradek")
    ours.type = ComponentType.APPLICATION
    ours.properties.add(Property(name="odradek:commit", value=commit))
    bom = Bom(components=[each for each in made.values() if each is not ours])
    bom.metadata.component, bom.metadata.timestamp = ours, when
    for path, found in metadata.items():
        needed = [
            made[chosen[each]]
            for python, chosen in installed.items()
            if chosen[names[path]] == path
            for each in _needs(found, python)
            if each in chosen
        ]
        bom.register_dependency(made[path], needed)
    digests = "".join(sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels))
    bom.serial_number = uuid.uuid5(_NAMESPACE, digests)
    return json.dumps(json.loads(JsonV1Dot6(bom).output_as_string()), indent=2, sort_keys=True) + "\n"


def _installed(names: Mapping[Path, str], python: str) -> dict[str, Path]:
    """Return the wheel of each project that pip installs on a Python such as 3.13. `names` has the normalized name of the
    project of each wheel. Platforms are left out, because all wheels of a release are for the platform of the hosts.
    """
    version = tuple(map(int, python.split(".")))
    interpreter = "cp" + "".join(map(str, version))
    tags = (
        *cpython_tags(version, [interpreter], ["any"]),
        *compatible_tags(version, interpreter, ["any"]),
    )
    order: dict[tuple[str, str], int] = {}
    for each in tags:
        order.setdefault((each.interpreter, each.abi), len(order))
    found: dict[str, tuple[int, Path]] = {}
    for path, name in names.items():
        for tag in parse_wheel_filename(path.name)[3]:
            rank = order.get((tag.interpreter, tag.abi))
            if rank is not None and (name not in found or rank < found[name][0]):
                found[name] = rank, path
    missing = {*names.values()} - {*found}
    assert not missing, f"a release for Python {python} has wheels of {missing} that fit it"
    return {name: path for name, (_, path) in found.items()}


def _metadata(wheel: Path) -> email.message.Message:
    """Return the fields of the file METADATA in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.parser.Parser().parsestr(archive.read(name).decode(), headersonly=True)


def _needs(metadata: email.message.Message, python: str) -> list[str]:
    """Return the normalized names of the projects that this project requires on a Python such as 3.13. Requirements of
    extras are left out.
    """
    full = f"{python}.0"
    there = {
        "extra": "",
        "python_version": python,
        "python_full_version": full,
        "implementation_version": full,
    }
    wanted = map(Requirement, metadata.get_all("Requires-Dist", []))
    return [normal(each.name) for each in wanted if each.marker is None or each.marker.evaluate(there)]


def _component(
    path: Path, metadata: email.message.Message, pythons: Iterable[str], locked: list[str]
) -> Component:
    name, version = normal(metadata["Name"]), metadata["Version"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    url = PackageURL("pypi", name=name, version=version, qualifiers={"file_name": path.name})
    fits = [Property(name="odradek:python", value=each) for each in pythons]
    others = [Property(name="odradek:locked:sha256", value=each) for each in locked if each != digest]
    licence = _licence(metadata)
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=str(url),
        purl=url,
        description=metadata["Summary"],
        scope=ComponentScope.EXCLUDED if name == INSTALLER else ComponentScope.REQUIRED,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
        properties=[Property(name="odradek:wheel", value=path.name), *fits, *others],
    )


def _licence(metadata: email.message.Message) -> str:
    """Return the licence of a project: its SPDX expression, or else its own text in one line, or else its classifier.
    Return an empty text if it states none.
    """
    stated = metadata["License-Expression"] or metadata["License"] or ""
    if stated and "\n" not in stated.strip():
        return str(stated).strip()
    classes = [each for each in metadata.get_all("Classifier", []) if each.startswith("License :: ")]
    return classes[0].rsplit(" :: ", 1)[1] if classes else ""
