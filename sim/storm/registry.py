"""All kinds of trouble that have their own modules, by their names in `StormPlan.kinds`."""

from __future__ import annotations

from collections.abc import Mapping

from sim.storm.breakage import BREAKAGES
from sim.storm.disk_damage import DISK_TROUBLES, FILE_TROUBLES
from sim.storm.power_cuts import POWER_CUTS
from sim.storm.storm import Trouble
from sim.storm.storm_plan import MORE_KINDS
from sim.storm.transaction_troubles import TRANSACTION_TROUBLES
from sim.storm.troubles import LATER_TROUBLES, TROUBLES
from sim.storm.upgrade import rolling_upgrade
from sim.storm.upkeep import UPKEEP

ALL_TROUBLES: Mapping[str, Trouble] = {
    **TROUBLES,
    **DISK_TROUBLES,
    **BREAKAGES,
    "upgrade": rolling_upgrade,
    **UPKEEP,
    **LATER_TROUBLES,
    **TRANSACTION_TROUBLES,
    **FILE_TROUBLES,
    **POWER_CUTS,
}

assert (*TROUBLES, *DISK_TROUBLES) == MORE_KINDS, "every seed draws its kinds in this order"
