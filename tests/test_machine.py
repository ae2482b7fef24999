import os
import sys

import pytest

from reuseloader.machine import memory, quota, ranks_here, usable_cores


@pytest.mark.skipif(sys.platform != "linux", reason="affinity: Linux")
def test_affinity_counts_and_not_the_machine():
    """A process kept to one processor has one."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= usable_cores() <= len(before)


def test_the_tightest_quota_of_a_group_and_those_above_it_counts(tmp_path):
    """Control groups nest; "max", rubbish and no file are no quota."""
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    assert quota(inner, tmp_path) is None
    (inner / "cpu.max").write_text("max 100000\n")
    assert quota(inner, tmp_path) is None
    (inner.parent / "cpu.max").write_text("150000 100000\n")
    assert quota(inner, tmp_path) == 1.5
    (inner / "cpu.max").write_text("50000 100000\n")
    assert quota(inner, tmp_path) == 0.5
    assert quota(inner.parent, tmp_path) == 1.5
    (inner / "cpu.max").write_text("rubbish")
    assert quota(inner, tmp_path) == 1.5
    assert quota(tmp_path.parent, tmp_path) is None


@pytest.mark.parametrize(
    ("told", "given", "ranks"),
    [(None, None, 1), ("4", None, 4), ("4", 2, 2), ("rubbish", None, 1), ("0", None, 1)],
)
def test_ranks_are_as_given_or_as_torchrun_says(told, given, ranks, monkeypatch):
    """The argument goes before LOCAL_WORLD_SIZE, which goes before 1."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if told is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    assert ranks_here(given) == ranks


def test_memory_is_that_of_a_machine():
    """It is a plausible number of bytes."""
    assert 2**26 < memory() < 2**60
