"""The table of all fuzz targets."""

from __future__ import annotations

from tests.fuzz import batches, frames, logs, messages, metadata, small_files
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET for module in (frames, messages, batches, logs, small_files, metadata)
}
