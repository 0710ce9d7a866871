"""The recipe "Add an API" of docs/contributing.md works: a new API is added to a copy of the code, served and guarded.

The test makes only the changes that the recipe names: table rows, the anatomy row, and the handler with its door. If
the recipe left one out, the node would not start.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.odradek_server import ODRADEK, launch_odradek, prepare_odradek
from tests.docs.markdown import ROOT

PACKAGES = ("wire", "metadata_quorum", "data_plane", "odradek")
MESSAGES = """\
M	EchoRequest	request	99	0	0+	no
F	Topics	[]EchoTopic	0+
F	Topics.Name	string	0+
M	EchoResponse	response	99	0	0+	no
F	ThrottleTimeMs	int32	0+
F	Topics	[]EchoedTopic	0+
F	Topics.Name	string	0+
F	Topics.ErrorCode	int16	0+
"""
API = "99	Echo	0	no	0+	broker	no	no\n"
ROW = "ECHO | topics name | =\n"
HANDLER = """
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.echo import EchoedTopic, EchoResponse


class EchoHandler:
    def handle(self, context, request):
        return EchoResponse(0, [EchoedTopic(each.name, ErrorCode.NONE) for each in request.topics])
"""
SERVED = (
    "    ApiKey.ECHO: Api(lambda at: EchoHandler().handle, needing(each=on_topic(Operation.DESCRIBE))),\n"
)
CUT = "DescribeClusterHandler(at.broker).handle"
GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:admin",
}
"""Settings of a node with an authorizer. Everybody may do everything except on resources that have a rule."""

ASK = """
import json, socket, sys
from odradek.wire.api import request_header_version, response_class, response_header_version
from odradek.wire.codec import decode, encode
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.echo import EchoRequest, EchoTopic
from odradek.wire.messages.headers import RequestHeader

conn = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30)
stream = conn.makefile("rb")

def ask(request, version):
    key = request.API_KEY
    frame = encode(RequestHeader(key, version, 1, "trial"), request_header_version(key, version)) + encode(request, version)
    conn.sendall(len(frame).to_bytes(4, "big") + frame)
    answer = stream.read(int.from_bytes(stream.read(4), "big"))
    return decode(response_class(key), version, answer[4 + response_header_version(key, version):])

advertised = {each.api_key: [each.min_version, each.max_version] for each in ask(ApiVersionsRequest("trial", "1"), 3).api_keys}
made = ask(CreateAclsRequest([AclCreation(2, "hidden", 3, "User:bob", "*", 8, 3)]), 3)
told = ask(EchoRequest([EchoTopic("open"), EchoTopic("hidden")]), 0)
print(json.dumps([advertised[99], made.results[0].error_code, {each.name: each.error_code for each in told.topics}]))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a copy of the code of a node."""
    tree = tmp_path / "tree"
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tree / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tree


def edit(path: Path, change: Callable[[str], str]) -> None:
    """Change a file of the copy."""
    text = path.read_text()
    changed = change(text)
    assert changed != text, path
    path.write_text(changed)


def enter(path: Path, after: str, line: str) -> None:
    """Insert a line behind the first line that begins with `after`."""
    lines = path.read_text().splitlines(keepends=True)
    number = next(number for number, each in enumerate(lines) if each.startswith(after))
    lines.insert(number + 1, line)
    path.write_text("".join(lines))


def run(tree: Path, *command: object) -> str:
    """Run a Python program on the copy."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "PYTHONPATH": str(tree)},
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("settings", [{}, GUARDED], ids=["without an authorizer", "with one"])
def test_an_api_without_a_door_ends_the_start(settings: dict[str, str], tree: Path, tmp_path: Path) -> None:
    """A missing door for an API of the table is noticed at once: every node refuses to start."""
    edit(
        tree / "data_plane/handlers/apis.py",
        lambda text: text.replace(
            "DescribeClusterHandler(at.broker).handle, topics.describe_cluster_door", CUT
        ),
    )
    properties = prepare_odradek(tmp_path / "node", settings=settings)
    done = subprocess.run(
        [ODRADEK, "server", properties],
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode
    assert "missing 1 required positional argument: 'door'" in done.stderr


def test_the_recipe_adds_an_api(tree: Path, tmp_path: Path) -> None:
    """With the rows, the handler and the door, the API is advertised, answers, and hides what the client may
    not see."""
    edit(tree / "wire/schema/messages.tsv", lambda text: text + MESSAGES)
    edit(tree / "wire/schema/apis.tsv", lambda text: text + API)
    run(tree, "-m", "odradek.wire.schema.generate")
    enter(tree / "wire/schema/anatomy_rows.py", "# API | things", ROW)
    (tree / "data_plane/handlers/echo.py").write_text(HANDLER)
    apis = tree / "data_plane/handlers/apis.py"
    enter(apis, "from __future__", "from odradek.data_plane.handlers.echo import EchoHandler\n")
    enter(apis, "APIS: ", SERVED)
    server = launch_odradek(
        prepare_odradek(tmp_path / "node", settings=GUARDED), environment={"PYTHONPATH": str(tree)}
    )
    try:
        host, _, port = server.bootstrap.rpartition(":")
        versions, made, told = json.loads(run(tree, "-c", ASK, host, port))
    finally:
        server.stop()
    assert versions == [0, 0]
    assert made == 0
    assert told == {"open": 0, "hidden": 29}
