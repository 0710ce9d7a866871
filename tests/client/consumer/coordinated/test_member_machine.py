"""The state machine of a member in a group of the new protocol (KIP-848), by scripts (see `member_script`)."""

from __future__ import annotations

import pytest

from odradek.client.consumer.member_machine import MemberMachine, MemberState, Verdict, judged
from odradek.wire.errors import ErrorCode
from tests.client.consumer.coordinated.member_script import MemberScript

JOINED = """
    subscribe a b
    join
    = joining*
    > epoch=0 full topics=a,b owned=-
    < epoch=2 a:0,1
    = reconciling!
    adopt
    = acknowledging*
    > epoch=2 owned=a:0,1
    < epoch=2
    = stable
"""


def test_a_member_joins_adopts_and_acknowledges() -> None:
    """The first heartbeat has all fields and no partitions.

    The acknowledgement of an assignment has only the partitions.
    """
    MemberScript().play(JOINED + "> epoch=2")


def test_the_first_heartbeat_has_rack_instance_and_assignor() -> None:
    """A static member sends its instance id in each heartbeat. Rack and assignor are only in a full heartbeat."""
    MemberScript(instance_id="i", rack_id="r", assignor="range").play(
        """
        subscribe a
        join
        > epoch=0 full instance=i rack=r topics=a assignor=range owned=-
        < epoch=1 -
        = reconciling!
        adopt
        > epoch=1 instance=i
        """
    )


def test_partitions_go_before_they_are_acknowledged() -> None:
    """While the application gives up partitions, heartbeats continue.

    They report the new set only when it has finished.
    """
    MemberScript().play(
        JOINED
        + """
        < epoch=2 a:0
        = reconciling!
        > epoch=2
        < epoch=2
        = reconciling!
        adopt
        = acknowledging*
        > epoch=2 owned=a:0
        < epoch=3
        = stable
        """
    )


def test_a_target_that_comes_meanwhile_waits() -> None:
    """A new target arrives before the adopted one is acknowledged.

    The acknowledgement is sent first, then the new target is adopted.
    """
    MemberScript().play(
        JOINED
        + """
        < epoch=3 a:0
        adopt
        < epoch=3 a:0 b:0      # the answer to an earlier heartbeat
        = acknowledging*
        > epoch=3 owned=a:0
        = reconciling!
        < epoch=4
        adopt
        > epoch=4 owned=a:0+b:0
        = stable
        """
    )


def test_a_changed_subscription_goes_at_once() -> None:
    """A changed subscription is sent at once, in a heartbeat with only the changed fields.

    An empty pattern withdraws an earlier one.
    """
    MemberScript().play(
        JOINED
        + """
        subscribe a
        = stable*
        > epoch=2 topics=a
        = stable
        pattern b.*
        = stable*
        > epoch=2 topics=- pattern=b.*
        < epoch=3 b:0
        adopt
        > epoch=3 owned=b:0
        subscribe a
        > epoch=3 topics=a pattern=-
        unanswered
        > epoch=3 full topics=a pattern=- owned=b:0
        """
    )


def test_all_fields_go_again_when_nobody_knows_what_came_through() -> None:
    """After an error or a missing answer, the next heartbeat has all fields, the epoch and the owned partitions."""
    MemberScript(assignor="range").play(
        """
        subscribe a
        join
        > epoch=0 full topics=a assignor=range owned=-
        unanswered
        = joining*
        > epoch=0 full topics=a assignor=range owned=-
        < epoch=2 a:0
        adopt
        > epoch=2 owned=a:0
        unanswered
        = stable*
        > epoch=2 full topics=a assignor=range owned=a:0
        < epoch=3 a:0          # the answer to a full heartbeat repeats the target
        = stable
        > epoch=3 owned=a:0
        < epoch=3
        > epoch=3
        """
    )


def test_full_heartbeats_name_what_is_owned_still() -> None:
    """A full heartbeat also names the partitions that the application has yet to give up."""
    MemberScript().play(
        JOINED
        + """
        < epoch=2 a:0
        unanswered
        > epoch=2 full topics=a,b owned=a:0,1
        """
    )


def test_full_heartbeats_name_what_may_be_adopted_meanwhile() -> None:
    """A full heartbeat names the target, too. The coordinator may read it after the application has adopted the target."""
    MemberScript().play(
        """
        subscribe a
        join
        > epoch=0 full topics=a owned=-
        < epoch=2 a:0,1
        = reconciling!
        unanswered
        > epoch=2 full topics=a owned=a:0,1
        adopt
        = acknowledging*
        > epoch=2 owned=a:0,1
        < epoch=2
        > epoch=2
        """
    )


def test_a_target_that_is_withdrawn_is_acknowledged() -> None:
    """The coordinator takes back partitions that the application never had. It waits for a report without them."""
    MemberScript().play(
        JOINED
        + """
        < epoch=3 a:0,1,2
        = reconciling!
        > epoch=3
        < epoch=3 a:0,1
        = reconciling!
        > epoch=3
        adopt
        = acknowledging*
        > epoch=3 owned=a:0,1
        = stable
        < epoch=4
        > epoch=4
        """
    )


def test_a_target_that_is_withdrawn_during_its_adoption_is_given_up() -> None:
    """Partitions that the application is getting count as owned, until it has given them up again."""
    MemberScript().play(
        JOINED
        + """
        < epoch=3 a:0,1,2
        begin
        > epoch=3
        < epoch=3 a:0,1
        > epoch=3
        unanswered
        > epoch=3 full topics=a,b owned=a:0,1,2
        < epoch=3 a:0,1
        end
        = acknowledging*
        > epoch=3 owned=a:0,1,2
        = reconciling!
        < epoch=3
        adopt
        > epoch=3 owned=a:0,1
        = stable
        """
    )


def test_a_fenced_member_joins_again_under_its_id() -> None:
    """A fenced member loses its partitions at once. Its next heartbeat has epoch 0, all fields and no partitions."""
    script = MemberScript()
    script.play(JOINED)
    before = script.machine.incarnation
    script.play(
        """
        lose fenced
        = fenced!
        join
        > epoch=0 full topics=a,b owned=-
        < epoch=7 a:0
        = reconciling!
        """
    )
    assert script.machine.incarnation > before
    assert (script.machine.unbroken_since, script.machine.owned) == (7, None)


def test_an_application_that_adopts_too_late_acknowledges_nothing() -> None:
    """The application adopts a target after the member was fenced.

    Partitions of the old membership are not reported.
    """
    script = MemberScript()
    script.play("subscribe a\njoin\n> epoch=0 full topics=a owned=-\n< epoch=2 a:0")
    stay = script.machine.incarnation
    adopted = script.machine.resolved(script.names)
    script.play("lose fenced\njoin")
    script.machine.adopted(adopted, stay)
    script.play("> epoch=0 full topics=a owned=-\n< epoch=4 a:0\n= reconciling!")


@pytest.mark.parametrize(
    ("machine", "goodbye"), [({}, "epoch=-1"), ({"instance_id": "i"}, "epoch=-2 instance=i")]
)
def test_a_member_leaves_by_its_epoch(machine: dict[str, str], goodbye: str) -> None:
    """A member leaves by epoch -1, or -2 if it is static and will return.

    So does a member whose application does not poll.
    """
    script = MemberScript(**machine)
    instance = " instance=i" if machine else ""
    script.play(
        f"""
        subscribe a
        join
        > epoch=0 full{instance} topics=a owned=-
        < epoch=2 a:0
        stale
        > {goodbye}
        = stale!
        join
        > epoch=0 full{instance} topics=a owned=-
        leave
        > {goodbye}
        = leaving
        unsubscribe
        = unsubscribed
        leave silently
        """
    )


def test_topics_without_a_name_wait_for_metadata() -> None:
    """If metadata lacks the name of an assigned topic, the partitions of known topics are adopted first.

    The rest follow when the name is known.
    """
    MemberScript().play(
        """
        subscribe a c
        join
        > epoch=0 full topics=a,c owned=-
        < epoch=2 c:0
        = reconciling
        > epoch=2
        < epoch=2 a:0 c:0
        = reconciling!
        adopt
        > epoch=2 owned=a:0
        = reconciling
        know c
        = reconciling!
        adopt
        > epoch=2 owned=a:0+c:0
        = stable
        """
    )


def test_what_is_lost_is_given_up_before_new_topics_are_known() -> None:
    """Partitions are given up at once, even if metadata lacks a topic of the new target."""
    MemberScript().play(
        JOINED
        + """
        < epoch=3 c:0
        = reconciling!
        adopt
        > epoch=3 owned=-
        = reconciling
        """
    )


def test_refusals_are_judged_as_kafkas_client_does() -> None:
    """Each error code has the consequence that Kafka's client draws from it (KIP-848): join again, raise, or retry."""
    verdicts = {
        ErrorCode.FENCED_MEMBER_EPOCH: Verdict.FENCED,
        ErrorCode.UNKNOWN_MEMBER_ID: Verdict.FENCED,
        ErrorCode.NOT_COORDINATOR: Verdict.RETRY,
        ErrorCode.COORDINATOR_NOT_AVAILABLE: Verdict.RETRY,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Verdict.RETRY,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: Verdict.REPORT,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: Verdict.FAILED,
        ErrorCode.UNRELEASED_INSTANCE_ID: Verdict.FAILED,
        ErrorCode.UNSUPPORTED_ASSIGNOR: Verdict.FAILED,
        ErrorCode.INVALID_REGULAR_EXPRESSION: Verdict.FAILED,
        ErrorCode.GROUP_MAX_SIZE_REACHED: Verdict.FAILED,
        ErrorCode.INVALID_REQUEST: Verdict.FAILED,
        ErrorCode.UNSUPPORTED_VERSION: Verdict.FAILED,
        ErrorCode.FENCED_INSTANCE_ID: Verdict.REPLACED,
    }
    assert {code: judged(code) for code in verdicts} == verdicts


def test_illegal_steps_are_bugs() -> None:
    """A step that the table of transitions lacks is a bug: for example, a heartbeat outside of the group."""
    machine = MemberMachine("g", lambda: "me", rebalance_timeout_ms=1)
    with pytest.raises(AssertionError, match="no heartbeat is due"):
        MemberScript().play("subscribe a\n> epoch=0")
    with pytest.raises(AssertionError, match="cannot go from the state unsubscribed to fenced"):
        machine.lose(MemberState.FENCED)
    with pytest.raises(AssertionError, match="not lost in the state stable"):
        machine.lose(MemberState.STABLE)
    script = MemberScript()
    script.play(JOINED)
    with pytest.raises(AssertionError, match="cannot go from the state stable to joining"):
        script.machine.join()
