import pytest
from helpers import (
    FOREVER,
    SIZE,
    Caught,
    DictStore,
    keys,
    right,
    run_pass,
    sample_of,
)

from reuseloader import ReuseDataset, ReusePolicy
from reuseloader.store import DirectoryStore


class TailStore(DictStore):
    """A store with the optional short cut."""

    def tail(self, index, size):
        record = self.read(index)
        return None if record is None else record[-size:]


class FailingStore(DictStore):
    """A store whose methods may fail."""

    def __init__(self, *failing):
        super().__init__()
        self.failing = failing

    def read(self, index):
        if "read" in self.failing:
            raise ConnectionError("no answer to read")
        return super().read(index)

    def write(self, index, record):
        if "write" in self.failing:
            raise ConnectionError("no answer to write")
        super().write(index, record)

    def __repr__(self):
        return "FailingStore()"


@pytest.mark.parametrize("kind", [DictStore, TailStore])
def test_a_store_of_the_users_works_like_a_directory(kind, log):
    """Any object that reads, writes and closes is a store: same samples, same builds."""
    policy = ReusePolicy(3, 5)
    mine = kind()
    dataset = ReuseDataset(log.build, 7, mine, policy)
    for epoch in range(8):
        assert right(dataset, epoch)
        assert log.take() == keys(
            policy, epoch, [i for i in range(7) if epoch == 0 or (epoch + i) % 3 == 0]
        )
    assert set(mine.records) == set(range(7))
    assert all(type(record) is bytes for record in mine.records.values())
    dataset.close()
    assert mine.closed == 1


def test_a_store_of_the_users_holds_the_same_bytes(store):
    """A record is the same in a directory and in any other store."""
    mine = DictStore()
    for path in (mine, store):
        run_pass(ReuseDataset(sample_of, SIZE, path, FOREVER), 0)
    files = {i: (store / f"{i:08}.pt").read_bytes() for i in range(SIZE)}
    assert mine.records == files


def test_a_damaged_record_of_a_store_is_built_anew(log):
    """What a store returns is checked like a file; the warning names the store and the index."""
    mine = DictStore()
    dataset = ReuseDataset(log.build, SIZE, mine, FOREVER)
    run_pass(dataset, 0)
    log.take()
    mine.records[2] = mine.records[2][:-1]
    with Caught() as caught:
        assert right(dataset, 1)
        assert right(dataset, 2)
    assert log.indices() == [2]
    assert len(caught) == 1
    assert "index 2" in caught[0]


@pytest.mark.parametrize("failing", [("read",), ("write",), ("read", "write")])
def test_a_failing_store_costs_builds_alone(failing, log):
    """A store that raises still lets every sample be delivered, with one warning for each kind."""
    mine = FailingStore(*failing)
    dataset = ReuseDataset(log.build, SIZE, mine, FOREVER)
    with Caught() as caught:
        for epoch in range(3):
            assert right(dataset, epoch)
            assert log.indices() == list(range(SIZE))
        mine.failing = ()
        assert right(dataset, 3)
        log.take()
        assert right(dataset, 4)
        assert log.indices() == []
        dataset.close()
    assert len(caught) == len(failing)
    for name in failing:
        assert any(
            f"no answer to {name}" in text and "FailingStore(), index 0" in text for text in caught
        )


def test_without_reuse_a_store_is_left_alone(log):
    """With lifetime 1 a store is neither read nor written."""
    mine = FailingStore("read", "write")
    with ReuseDataset(log.build, SIZE, mine, ReusePolicy(1)) as dataset:
        assert right(dataset, 0)
        assert right(dataset, 1)
    assert mine.records == {}


def test_the_directory_store_can_be_made_by_hand(store, log):
    """A DirectoryStore is a store like any other, and closes without harm."""
    with ReuseDataset(log.build, SIZE, DirectoryStore(store), FOREVER) as dataset:
        assert right(dataset, 0)
    assert right(dataset, 1)
    assert len(log.take()) == SIZE
