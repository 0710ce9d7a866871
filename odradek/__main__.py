"""`python -m odradek` is the command `odradek`."""

from __future__ import annotations

import sys

from odradek.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
