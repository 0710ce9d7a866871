"""Limits on the contents of a registration, which every node keeps in memory and on disk, and sends in metadata."""

from __future__ import annotations

from typing import Any

import attrs

from odradek.metadata_quorum.controller.brokers.registration_rules import (
    FEATURES_MAX,
    LISTENERS_MAX,
    LOG_DIRS_MAX,
    NAME_CHARACTERS_MAX,
)
from odradek.metadata_quorum.features import METADATA_VERSION, SUPPORTED_FEATURES
from odradek.wire.errors import ErrorCode
from odradek.wire.messages import controller_registration
from odradek.wire.messages.broker_registration import Feature, Listener
from odradek.wire.messages.controller_registration import ControllerRegistrationRequest
from sim.machine.world import World
from tests.quorum.voters.controllers import Controllers, play, register

INVALID, UNSUPPORTED = ErrorCode.INVALID_REGISTRATION, ErrorCode.UNSUPPORTED_VERSION
LONG = "x" * (NAME_CHARACTERS_MAX + 1)
LISTENER = Listener("PLAINTEXT", "host", 9092, 0)
FEATURES = register(100).features
BROKERS: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "negative id": ({"broker_id": -1}, INVALID),
    "no incarnation": ({"incarnation_id": bytes(16)}, INVALID),
    "no listener": ({"listeners": []}, INVALID),
    "many listeners": (
        {"listeners": [Listener(f"L{number}", "host", 9092, 0) for number in range(LISTENERS_MAX + 1)]},
        INVALID,
    ),
    "two of one name": ({"listeners": [LISTENER, LISTENER]}, INVALID),
    "no host": ({"listeners": [Listener("PLAINTEXT", "", 9092, 0)]}, INVALID),
    "long host": ({"listeners": [Listener("PLAINTEXT", LONG, 9092, 0)]}, INVALID),
    "no listener name": ({"listeners": [Listener("", "host", 9092, 0)]}, INVALID),
    "no port": ({"listeners": [Listener("PLAINTEXT", "host", 0, 0)]}, INVALID),
    "unknown protocol": ({"listeners": [Listener("PLAINTEXT", "host", 9092, 99)]}, INVALID),
    "long rack": ({"rack": LONG}, INVALID),
    "many features": (
        {"features": FEATURES + [Feature(f"f{number}", 0, 1) for number in range(FEATURES_MAX)]},
        INVALID,
    ),
    "no metadata.version": (
        {"features": [each for each in FEATURES if each.name != METADATA_VERSION]},
        INVALID,
    ),
    "long feature": ({"features": [*FEATURES, Feature(LONG, 0, 1)]}, INVALID),
    "no range": ({"features": [*FEATURES, Feature("f", 5, 1)]}, UNSUPPORTED),
    "negative range": ({"features": [*FEATURES, Feature("f", -5, -1)]}, UNSUPPORTED),
    "many directories": (
        {"log_dirs": [b"directory %06d" % number for number in range(LOG_DIRS_MAX + 1)]},
        INVALID,
    ),
}


def controller(**changes: Any) -> ControllerRegistrationRequest:
    """Make a valid registration of controller 7, with these changes."""
    fields: dict[str, Any] = {
        "controller_id": 7,
        "incarnation_id": b"incarnation of 7",
        "listeners": [controller_registration.Listener("CONTROLLER", "host", 9093, 0)],
        "features": [
            controller_registration.Feature(name, low, high)
            for name, (low, high) in sorted(SUPPORTED_FEATURES.items())
        ],
    }
    return ControllerRegistrationRequest(**fields | changes)


def of_controllers(changes: dict[str, Any]) -> dict[str, Any]:
    """Translate the invalid fields of a broker's registration to fields of a controller's registration."""
    if "broker_id" in changes:
        return {"controller_id": changes["broker_id"]}
    if "listeners" in changes:
        made = controller_registration.Listener
        return {
            "listeners": [made(e.name, e.host, e.port, e.security_protocol) for e in changes["listeners"]]
        }
    if "features" in changes:
        made_feature = controller_registration.Feature
        return {
            "features": [
                made_feature(e.name, e.min_supported_version, e.max_supported_version)
                for e in changes["features"]
            ]
        }
    return changes


def test_absurd_registrations_are_refused() -> None:
    """Each invalid registration is refused with its error code, and nothing of it is written.

    Valid registrations are accepted before and after.
    """

    async def script(world: World, controllers: Controllers) -> None:
        assert (await controllers.ask(register(100))).error_code == 0
        for what, (changes, code) in BROKERS.items():
            answer = await controllers.ask(attrs.evolve(register(101), **changes))
            assert answer.error_code == code, what
            if "rack" not in changes and "log_dirs" not in changes:
                answer = await controllers.ask(controller(**of_controllers(changes)))
                assert answer.error_code in (code, UNSUPPORTED), what
                assert answer.error_message, what
        assert (await controllers.ask(controller())).error_code == 0
        assert (await controllers.ask(register(102))).error_code == 0
        await controllers.agree()
        image = (await controllers.leader()).service.committed_image
        assert sorted(image.brokers) == [100, 102]
        assert sorted(image.controllers) == [7]

    play(script)


def test_the_most_that_is_taken() -> None:
    """A registration with all fields at their limits is accepted."""
    request = attrs.evolve(
        register(101),
        listeners=[
            Listener(f"{number:0{NAME_CHARACTERS_MAX}}", "h" * NAME_CHARACTERS_MAX, 65535, 3)
            for number in range(LISTENERS_MAX)
        ],
        features=FEATURES + [Feature(f"f{number}", 0, 1) for number in range(FEATURES_MAX - len(FEATURES))],
        rack="r" * NAME_CHARACTERS_MAX,
        log_dirs=[b"directory %06d" % number for number in range(LOG_DIRS_MAX)],
    )

    async def script(world: World, controllers: Controllers) -> None:
        assert (await controllers.ask(request)).error_code == 0

    play(script)
