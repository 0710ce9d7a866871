"""The bill of materials (SBOM) of a release: CycloneDX 1.6 in JSON.

It lists our wheel and each wheel that a node needs: version, licence, dependencies, and the SHA-256 of the wheel in the
release. A property of each component has the locked hashes of its wheels for other Pythons and platforms. Each build of
the same release gives the same bytes. So the time in the bill is that of the commit, and the serial number is a digest
of the wheels.
"""

from __future__ import annotations

import email.message
import email.parser
import hashlib
import json
import uuid
import zipfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

from deploy.lock_wheels import normal

__all__ = ["bill"]

INSTALLER = "pip"
"""The project that installs all other projects on a host. Its wheel is in the release, but no code of a node imports
it.
"""
_NAMESPACE = uuid.UUID("6f64726f-6465-4b00-8000-000000000000")


def bill(wheels: list[Path], locked: Mapping[str, list[str]], commit: str, when: datetime) -> str:
    """Return the text of the bill of materials for these wheels. One of the wheels is our own.

    `locked` has the SHA-256 of all wheels of each project's version, by normalized name. `when` is the time of the
    commit, with a time zone.
    """
    metadata = {path: _metadata(path) for path in wheels}
    made = {
        normal(found["Name"]): _component(path, found, locked.get(normal(found["Name"]), []))
        for path, found in sorted(metadata.items())
    }
    ours = made["odradek"]
    ours.type = ComponentType.APPLICATION
    ours.properties.add(Property(name="odradek:commit", value=commit))
    bom = Bom(components=[each for name, each in made.items() if name != "odradek"])
    bom.metadata.component, bom.metadata.timestamp = ours, when
    for found in metadata.values():
        bom.register_dependency(
            made[normal(found["Name"])], [made[each] for each in _needs(found) if each in made]
        )
    digests = "".join(sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels))
    bom.serial_number = uuid.uuid5(_NAMESPACE, digests)
    return json.dumps(json.loads(JsonV1Dot6(bom).output_as_string()), indent=2, sort_keys=True) + "\n"


def _metadata(wheel: Path) -> email.message.Message:
    """Return the fields of the file METADATA in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.parser.Parser().parsestr(archive.read(name).decode(), headersonly=True)


def _needs(metadata: email.message.Message) -> list[str]:
    """Return the normalized names of the projects that this project requires on the present Python. Requirements of
    extras are left out.
    """
    wanted = map(Requirement, metadata.get_all("Requires-Dist", []))
    return [
        normal(each.name) for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})
    ]


def _component(path: Path, metadata: email.message.Message, locked: list[str]) -> Component:
    name, version = normal(metadata["Name"]), metadata["Version"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    url = PackageURL("pypi", name=name, version=version)
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
        properties=[Property(name="odradek:wheel", value=path.name), *others],
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
