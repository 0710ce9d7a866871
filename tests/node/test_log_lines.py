"""The node's log has one line per event, whatever text its values contain."""

from __future__ import annotations

import io

from odradek.env.real import RealEnv
from odradek.node.logging import make_logger


def test_a_line_has_no_control_characters() -> None:
    """Terminal codes and newlines in a client id are logged as escapes within the field."""
    out = io.StringIO()
    log = make_logger(RealEnv().clock, out, node=1)
    name = 'evil\nlevel=error event="x"\r\x1b[2J\x9b2J\u202e'
    log.warning("connection.protocol_error", client_id=name, names=[name], plain="Zürich")
    (line,) = out.getvalue().splitlines()
    assert line.isprintable()
    assert 'client_id="evil\\nlevel=error event=\\"x\\"\\r\\x1b[2J\\x9b2J\\u202e"' in line
    assert "plain=Zürich" in line


def test_a_traceback_stays_readable() -> None:
    """A traceback is one field, with escaped newlines between its lines."""
    out = io.StringIO()
    log = make_logger(RealEnv().clock, out)
    try:
        raise ValueError("a\x1bb")
    except ValueError:
        log.exception("connection.bug")
    (line,) = out.getvalue().splitlines()
    assert line.isprintable()
    assert "ValueError: a\\x1bb" in line
    assert "\\n" in line
