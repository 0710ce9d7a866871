"""A coordinator's log shows all its decisions: another coordinator that reads it has the same state."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule import examples
from tests.transactions.transaction_script import TransactionScript

NAMES = st.sampled_from(("A", "B", "C"))
IDS = st.sampled_from(("id=t", "id=u"))
EPOCHS = st.sampled_from(("", "epoch=-1", "epoch=+1"))
VERSIONS = st.sampled_from(("v=0", "v=2"))
PARTITIONS = st.sampled_from(("x-0", "x-1", "y-0"))
COMMANDS = st.one_of(
    st.tuples(
        st.just("init"),
        NAMES,
        IDS,
        st.sampled_from(("", "as=A", "as=B")),
        st.sampled_from(("", "two-phase", "timeout=10")),
        st.sampled_from(("", "keep")),
    ),
    st.tuples(st.just("add"), NAMES, PARTITIONS, IDS, EPOCHS, VERSIONS),
    st.tuples(st.just("end"), NAMES, st.sampled_from(("commit", "abort")), IDS, EPOCHS, VERSIONS),
    st.tuples(st.just("markers"), IDS),
    st.tuples(st.just("epoch"), st.sampled_from(("32765", "32766")), IDS),
    st.tuples(st.just("wait"), st.sampled_from(("1", "11", "500", "700000000"))),
    st.sampled_from((("check",), ("expire",), ("takeover",), ("list",))),
)


@given(st.lists(COMMANDS, max_size=40))
@settings(max_examples=examples(200), deadline=None)
def test_the_log_says_what_is_decided(commands: list[tuple[str, ...]]) -> None:
    """After each command, the replayed records give the same state, apart from the last producer epoch."""
    script = TransactionScript()
    script.run("init A id=t")
    script.run("init B id=u")
    for verb, *words in commands:
        name = dict(word.split("=", 1) for word in words if "=" in word).get("id")
        if verb in ("markers", "epoch") and name not in script.state.transactions:
            continue
        if verb == "epoch" and script.state.transactions[name or ""].status.is_ending:
            # While a transaction ends, the script cannot use up epochs: that needs a producer with the current epoch.
            continue
        claimed = [word for word in words if word.startswith("as=")]
        if claimed and claimed[0][3:] not in script.known:
            continue
        script.run(" ".join((verb, *words)))
        assert all(each.producer_epoch < 1 << 15 for each in script.state.transactions.values())
