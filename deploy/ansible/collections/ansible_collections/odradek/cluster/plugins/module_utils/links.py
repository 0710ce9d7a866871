"""Installed releases on a host: the links `current` and `previous`, and the free space that another release needs."""

from __future__ import annotations

import glob
import os
import shutil

EXTRAS = {"console": "h11"}
"""Extras that a host may need, each with the package that shows whether it is installed."""
BYTES_FREE_MIN = 300_000_000
"""The free space, in bytes, that the installation of a release needs."""


def linked(root: str, link: str) -> str | None:
    """Return the release to which a link points; None if there is no such link."""
    try:
        return os.path.basename(os.readlink(os.path.join(root, link)))
    except OSError:
        return None


def is_installed(root: str, name: str) -> bool:
    """True if the release is installed completely. The manifest shows this, because it is the last file that is
    written.
    """
    return os.path.exists(os.path.join(root, "versions", name, "MANIFEST.json"))


def extras_of(root: str, name: str) -> list[str]:
    """Return the extras that an installed release has. Pip writes the file INSTALLER after all files of a package."""
    packages = os.path.join(
        glob.escape(os.path.join(root, "versions", name)), "lib", "python3*", "site-packages"
    )
    return [
        extra
        for extra, package in EXTRAS.items()
        if glob.glob(os.path.join(packages, f"{package}-*.dist-info", "INSTALLER"))
    ]


def room_problem(root: str, bytes_free_min: int = BYTES_FREE_MIN) -> str | None:
    """Return a sentence if another release would fill the disk of the system; None if there is room."""
    place = root
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    if free >= bytes_free_min:
        return None
    return (
        f"{free // 1_000_000} MB are free for {root}, a release needs {bytes_free_min // 1_000_000}: "
        f"make room, for example remove old ones from {root}/versions."
    )


def activate(root: str, name: str, previous: str | None) -> None:
    """Make a release the current one. `previous` is the release for a roll-back; by default it is the current one."""
    former = previous or linked(root, "current")
    if former is not None:
        _switch(root, "previous", former)
    _switch(root, "current", name)


def _switch(root: str, link: str, name: str) -> None:
    """Switch a link to another release by a rename, which is atomic."""
    new = os.path.join(root, f".{link}.new")
    if os.path.lexists(new):
        os.unlink(new)
    os.symlink(os.path.join("versions", name), new)
    os.rename(new, os.path.join(root, link))
