"""An operator's bad day: steps of the deployment test with mistakes and failures, and the ways out of them."""

from __future__ import annotations

from collections.abc import Callable

from tests.deploy.bad_day import dying_disks, mistakes, roll_outs, secrets, ways_on
from tests.deploy.life import Life

BAD_DAY: tuple[Callable[[Life], None], ...] = (
    *mistakes.STEPS,
    # From here on the inventory contains secrets, which no run may show.
    secrets.planted_secrets,
    *roll_outs.STEPS,
    *dying_disks.STEPS,
    *secrets.STEPS,
    *ways_on.STEPS,
    secrets.planted_secrets_at_the_end,
)
