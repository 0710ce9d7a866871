"""The table of docs/acls.md, made from the docstrings of the doors: `python -m tests.security.table` writes it."""

from __future__ import annotations

from pathlib import Path

from odradek.data_plane.handlers.apis import APIS
from odradek.metadata_quorum.controller.doors import CONTROLLER_DOORS
from odradek.wire.api_keys import ApiKey

PATH = Path(__file__).parents[2] / "docs" / "acls.md"
HEAD = "| key | API | right | judged by |\n| ---: | --- | --- | --- |\n"
DESCRIBES_ACLS = "DESCRIBE on the cluster."
"""The right for DescribeAcls. The API checks it itself, since its answer differs without an authorizer."""


def rights() -> dict[ApiKey, tuple[str, str]]:
    """Return the right that each API with a door needs, and the nodes that check it."""
    at_broker = {key: api.door for key, api in APIS.items() if not api.is_forwarded}
    found = {}
    for api in sorted({*at_broker, *CONTROLLER_DOORS}):
        judges = [
            name for name, doors in (("broker", at_broker), ("controller", CONTROLLER_DOORS)) if api in doors
        ]
        texts = []
        for name in judges:
            door = (at_broker if name == "broker" else CONTROLLER_DOORS)[api]
            text = DESCRIBES_ACLS if api == ApiKey.DESCRIBE_ACLS else _right(door.__doc__ or "")
            if text not in texts:
                texts.append(text)
        found[api] = (" On a controller: ".join(texts), ", ".join(judges))
    return found


def _right(docstring: str) -> str:
    """Return a door's docstring without its verb: "WRITE on each topic", "Everybody"."""
    text = " ".join(docstring.split()).removeprefix("Require ").removeprefix("Let in ")
    return text[:1].upper() + text[1:]


def render() -> str:
    """Return the page with the current table."""
    page = PATH.read_text()
    rows = "".join(
        f"| {int(api)} | {api.name} | {text} | {judge} |\n" for api, (text, judge) in rights().items()
    )
    return page[: page.index(HEAD)] + HEAD + rows


if __name__ == "__main__":
    PATH.write_text(render())
