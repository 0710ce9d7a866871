"""The forms of the deployment test: the steps of each form, and the hosts on which they run."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.deploy.bad_day import BAD_DAY
from tests.deploy.bad_day.recoveries import STEPS as RECOVERIES
from tests.deploy.bad_day.upgrades import STEPS as UPGRADES
from tests.deploy.faces import faces
from tests.deploy.hosts import hosts_in, refused_by_the_machine
from tests.deploy.life import (
    DISK_BYTES,
    FIRST,
    FOURTH,
    Life,
    again,
    bad_input,
    birth,
    broken_release,
    change_disks,
    drain,
    grow,
    inventory_of,
    kill_and_return,
    look_and_keep,
    look_at_the_change,
    look_first,
    lose_a_disk,
    reconfigure,
    replace,
    report,
    rollback,
    secure,
    upgrade,
)
from tests.deploy.load import DELIVERY_SECONDS, Load
from tests.deploy.needs import Debian
from tests.deploy.playbooks import Playbooks
from tests.deploy.releases import BROKEN, NARROW, NEW, OLD, PUBLISHED, wait_for_releases

SHORT = (birth, again, reconfigure)
WHOLE = (
    bad_input,
    look_first,
    birth,
    again,
    look_at_the_change,
    reconfigure,
    kill_and_return,
    lose_a_disk,
    change_disks,
    upgrade,
    broken_release,
    replace,
    grow,
    rollback,
    drain,
    look_and_keep,
    secure,
    faces,
)

_RECORDS_PER_SECOND = {"short": 20, "faces": 20, "whole": 100, "bad-day": 50, "recover": 20, "upgrades": 50}
# While the quorum is lost, no record is acknowledged. An operator reads two plans before the run that recovers it.
_DELIVERY_SECONDS = {"recover": 900}
FORMS: dict[str, tuple[Callable[[Life], None], ...]] = {
    "short": SHORT,
    "faces": (birth, faces),
    "whole": WHOLE,
    "bad-day": (birth, *BAD_DAY),
    "recover": (birth, *RECOVERIES),
    "upgrades": (birth, *UPGRADES),
}
_HOSTS = {"short": FIRST[:2], "faces": FIRST[:2], "recover": FIRST, "upgrades": FIRST}
# The other releases are built while the first steps run. Steps that need them wait.
_RELEASES = {"short": (OLD,), "faces": (OLD,), "whole": (OLD,), "upgrades": PUBLISHED[:1]}


def live(
    work: Path, form: str, only: list[str], debians: tuple[Debian, ...], *, keep_going: bool = False
) -> int:
    """Run the steps of a form inside a sandbox, or only the steps named in `only`. Print a report and return 0.

    Raises `CannotBoot` or `CannotBuild` if hosts or releases are unavailable. With `keep_going` the run continues after
    a failed step. The report names this step, and 1 is returned. A failed `birth` always ends the run.
    """
    with hosts_in(work, debians) as hosts:
        begun = time.monotonic()
        with refused_by_the_machine():
            for name in _HOSTS.get(form, (*FIRST, FOURTH)):
                hosts.make(name, ("a", "b"), DISK_BYTES)
            hosts.boot(*hosts.hosts)
            hosts.probe(FIRST[0], "a")
        print(f"{len(hosts.hosts)} hosts booted in {time.monotonic() - begun:.1f} s", flush=True)
        wait_for_releases(work / "releases", *_RELEASES.get(form, (OLD, NEW, BROKEN, NARROW)))
        playbooks = Playbooks(
            hosts, inventory_of(hosts, discovers=form not in ("bad-day", "recover")), work / "playbooks.log"
        )
        if form == "upgrades":
            playbooks.inventory["vars"]["odradek_release"] = PUBLISHED[0]
        if form == "hosts":
            return playbooks.shell(DISK_BYTES)
        load = Load(
            ",".join(f"{hosts[name].address}:9092" for name in playbooks.inventory["hosts"]),
            len(playbooks.inventory["hosts"]),
            records_per_second=_RECORDS_PER_SECOND[form],
            delivery_seconds=_DELIVERY_SECONDS.get(form, DELIVERY_SECONDS),
        )
        life = Life(hosts, playbooks, load)
        failed = []
        for each in FORMS[form]:
            if only and each is not birth and each.__name__ not in only:
                continue
            try:
                each(life)
            except Exception:
                if not keep_going or each is birth:
                    raise
                traceback.print_exc()
                print(f"{each.__name__} failed", flush=True)
                failed.append(each.__name__)
        with life.step("every record accounted for") as step:
            life.loaded = False
            step.note = load.finish()
    print(report(life.steps))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0
