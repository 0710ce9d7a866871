"""`meta.properties`: the ids of the cluster, node and directory to which a log directory belongs, and the error
for an empty (unmounted) directory. The file has version 1, as Kafka writes it.
"""

from __future__ import annotations

import attrs

from odradek.env.ports import Dir, FileMissing
from odradek.metadata_quorum.config.java_properties import MalformedProperties, escape_value, parse_properties
from odradek.wire.uuid_text import uuid_from_text, uuid_to_text

META_PROPERTIES = "meta.properties"
_SIZE_MAX = 1 << 18


class NotALogDirectory(Exception):
    """Raised if `meta.properties` is missing, damaged or of an unsupported version.

    A directory without this file must be formatted first.
    """


class EmptyDirectory(NotALogDirectory):
    """Raised if the directory is empty: it is a new directory, or the mount point of a disk that is not
    mounted.
    """


@attrs.frozen
class MetaProperties:
    """The contents of `meta.properties`: the cluster, node and directory ids."""

    cluster_id: str
    node_id: int
    directory_id: bytes

    def encode(self) -> bytes:
        return (
            f"node.id={self.node_id}\n"
            f"directory.id={uuid_to_text(self.directory_id)}\n"
            "version=1\n"
            f"cluster.id={escape_value(self.cluster_id)}\n"
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> MetaProperties:
        """Decode the file.

        As in Kafka the file is read as Latin-1, although it is written as UTF-8. Raises `NotALogDirectory`.
        """
        try:
            fields = parse_properties(data.decode("latin-1"))
        except MalformedProperties as error:
            raise NotALogDirectory(str(error)) from None
        version = fields.get("version", "missing")
        if version != "1":
            raise NotALogDirectory(f"the file has version {version}, and only version 1 is supported")
        try:
            return cls(fields["cluster.id"], int(fields["node.id"]), uuid_from_text(fields["directory.id"]))
        except KeyError as missing:
            raise NotALogDirectory(f"the property {missing.args[0]} is missing") from None
        except ValueError as error:
            raise NotALogDirectory(str(error)) from None


def read_meta_properties(directory: Dir) -> MetaProperties:
    """Read `meta.properties` of a log directory. Raises `NotALogDirectory`, `EmptyDirectory`, `DiskError`."""
    try:
        data = directory.read_bytes(META_PROPERTIES, _SIZE_MAX)
    except FileMissing:
        if not directory.list():
            raise EmptyDirectory(
                f"{directory.path} is empty: mount its disk, or format the directory if it is new (`odradek "
                "storage format`)"
            ) from None
        raise NotALogDirectory(
            f"{directory.path} has no file {META_PROPERTIES}: format the directory first (`odradek "
            "storage format`)"
        ) from None
    try:
        return MetaProperties.decode(data)
    except NotALogDirectory as error:
        raise NotALogDirectory(f"{directory.path}/{META_PROPERTIES} cannot be used: {error}") from None
