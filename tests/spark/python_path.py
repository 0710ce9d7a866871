"""The search path of Python processes that the tests of Spark start."""

from __future__ import annotations

import os
from pathlib import Path

from tests.docs.markdown import ROOT

__all__ = ["python_path"]


def python_path(*first: Path) -> str:
    """Return a value of PYTHONPATH: these folders, the repository, and the path of this process.

    `make test-spark` names its version of Spark by PYTHONPATH. Without it, a process would run the installed version.
    """
    return os.pathsep.join([*map(str, first), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
