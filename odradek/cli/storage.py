"""`odradek storage format|info`: prepare the directories of a node, and say what they hold."""

from __future__ import annotations

import argparse
from typing import Any

from odradek.cli.failure import CliError
from odradek.cli.output import print_json, print_table, print_values
from odradek.cli.parsing import Groups, add_command

__all__ = ["format_directories", "register"]
