"""The order of tests, and those that stay together: the lists name files that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests import schedule
from tests.schedule import examples, scope_of, seconds_of, seeds

ROOT = Path(__file__).resolve().parent.parent


def test_scopes_name_files_that_exist() -> None:
    """A file that moved takes its line along: it would begin last otherwise, or start a server of its own."""
    named = {*schedule.SECONDS, *schedule.APACHE_KAFKA, *schedule.SHAPE, *schedule.SPARK}
    scopes = {scope_of(path) for path in (*schedule.APACHE_KAFKA, *schedule.SHAPE)}
    assert [name for name in sorted(named - scopes) if not (ROOT / name).exists()] == []


def test_tests_that_share_a_server_stay_together() -> None:
    """One Spark for its folder, and one Apache Kafka with it for the client's files; any other file is a scope of its own."""
    assert scope_of("tests/spark/writing/test_sink.py::test_a[1]") == scope_of(
        "tests/spark/test_guide.py::test_b"
    )
    assert scope_of(f"{schedule.OWN_SPARK}::test_a") == schedule.OWN_SPARK
    assert {scope_of(f"{path}::test") for path in schedule.APACHE_KAFKA} == {schedule.JAVA}
    assert scope_of("tests/wire/codecs/test_codec.py::TestA::test[x::y]") == "tests/wire/codecs/test_codec.py"
    assert (
        seconds_of(schedule.JAVA) > seconds_of("tests/wire/codecs/test_codec.py") > seconds_of("unknown") == 0
    )


def test_tests_that_ask_for_spark_share_it() -> None:
    """Files of Spark's folder that ask for the session, or for Apache Kafka, are one scope; the others start no server."""
    assert "tests/spark/reading/test_source_batch.py" in schedule.SPARK
    assert "tests/spark/reading/test_decode.py" not in schedule.SPARK
    assert schedule.OWN_SPARK not in schedule.SPARK
    assert len(schedule.SPARK) > 9


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_each_file_is_in_one_share(count: int) -> None:
    """However many workers there are, each file is compiled by one of them."""
    files = [Path(f"test_{number}.py") for number in range(10)]
    shares = [schedule.share_of(files, number, count) for number in range(count)]
    assert [path for share in shares for path in share] == files
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_quick_runs_the_first_seeds() -> None:
    """The others are left to `make test`."""
    first, second, third = seeds(3)
    assert (first, second) == (0, 1)
    assert third == pytest.param(2, marks=pytest.mark.long)


def test_the_quick_profile_makes_a_fifth_of_the_examples() -> None:
    """Numbers in the tests are those of `make test`."""
    before = settings.get_current_profile_name()
    try:
        settings.load_profile("odradek")
        assert examples(250) == 250
        settings.load_profile("quick")
        assert (examples(250), examples(3)) == (50, 1)
    finally:
        settings.load_profile(before)
