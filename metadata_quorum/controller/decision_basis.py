"""The basis of a decision besides the image, the request and its context: the controller's settings and its sessions."""

from __future__ import annotations

import attrs

from metadata_quorum.controller.broker_sessions import BrokerSessions
from metadata_quorum.controller.controller_settings import ControllerSettings

__all__ = ["DecisionBasis"]


@attrs.frozen
class DecisionBasis:
    """One for as long as a controller is active. The sessions are its only soft state."""

    settings: ControllerSettings
    sessions: BrokerSessions
