"""Each attack in its short form against one secured node. `make test-security` runs the full forms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.known import Attack, attacks
from tests.attacks.place import Place, attacked

SHORT = 0.05
ATTACKS = attacks()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Start a node for all attacks that need no settings of their own."""
    with attacked(tmp_path_factory.mktemp("attacked")) as place:
        yield place
        place.check_alive()


def check(attack: Attack, place: Place, scale: float) -> None:
    """Run an attack, and fail with the rules that did not hold."""
    outcomes = list(attack.run(place, scale))
    place.check_alive()
    assert outcomes, f"{attack.name} looked at nothing"
    assert all(each.held for each in outcomes), "\n".join(map(str, outcomes))


@pytest.mark.long
@pytest.mark.parametrize("name", list(ATTACKS))
def test_a_node_holds_against_each_attack(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """An attacker gets nothing beyond its rights, and the node goes on serving its other clients."""
    attack = ATTACKS[name]
    if not attack.settings:
        check(attack, request.getfixturevalue("place"), SHORT)
        return
    with attacked(tmp_path, settings=attack.settings) as place:
        check(attack, place, SHORT)


@pytest.mark.attack
@pytest.mark.parametrize("name", list(ATTACKS))
def test_a_node_holds_against_each_attack_in_full(name: str, tmp_path: Path) -> None:
    """Each attack runs at the size that once did harm, on a fresh node. The node holds."""
    with attacked(tmp_path, settings=ATTACKS[name].settings) as place:
        check(ATTACKS[name], place, 1.0)
