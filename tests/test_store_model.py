import os
import shutil
import signal
import tempfile
from multiprocessing import get_context
from pathlib import Path

import pytest
from helpers import (
    FORKS,
    Caught,
    bits,
    overwrite,
    sample_of,
    temps,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from reuseloader import IndexEpoch, ReuseDataset, ReusePolicy
from reuseloader.audit import check
from reuseloader.store import DirectoryStore

DAMAGES = {
    "empty": overwrite(lambda b: b""),
    "half": overwrite(lambda b: b[: len(b) // 2]),
    "all but one byte": overwrite(lambda b: b[:-1]),
    "twice": overwrite(lambda b: b + b),
    "zeros": overwrite(lambda b: bytes(len(b))),
    "text": overwrite(lambda b: b"hello world"),
}


class StoreMachine(RuleBasedStateMachine):
    """Starts, fetches and damage in any order; a dict says what must be built."""

    INDICES = st.integers(0, 3)

    @initialize()
    def make_directory(self):
        self.path = Path(tempfile.mkdtemp(prefix="reuseloader-test-"))
        self.files = {}  # index -> what its file is the record of, or None if it is damaged
        self.built = []
        self.start(2, 0, "", 4)

    def build(self, key):
        self.built.append(key)
        return sample_of(key)

    def file(self, index):
        return self.path / f"{index:08}.pt"

    def draw_file(self, data, *, sound=False):
        """The index of a file that there is, and is sound if it must be."""
        indices = [index for index, record in self.files.items() if record or not sound]
        return data.draw(st.sampled_from(sorted(indices)))

    @rule(
        lifetime=st.integers(1, 5),
        seed=st.integers(0, 1),
        fingerprint=st.sampled_from("ab"),
        size=st.sampled_from((2, 4, 9)),
    )
    def start(self, lifetime, seed, fingerprint, size):
        self.settings = lifetime, seed, fingerprint
        policy = ReusePolicy(lifetime, seed)
        with Caught():  # perhaps of another size
            self.dataset = ReuseDataset(
                self.build, size, self.path, policy, fingerprint=fingerprint
            )

    @rule(index=INDICES, epoch=st.integers(0, 9))
    def fetch(self, index, epoch):
        key = self.dataset.policy.key(index, epoch)
        record = index, key.generation, self.settings
        if index >= len(self.dataset):
            with pytest.raises(IndexError):
                self.dataset[IndexEpoch(index, epoch)]
            return
        with Caught():
            sample = self.dataset[IndexEpoch(index, epoch)]
        assert bits(sample) == bits(sample_of(key.first))
        if self.settings[0] > 1 and self.files.get(index) == record:
            assert self.built == []
        else:
            assert self.built == [key.first]
            if not self.dataset.policy.is_last_use(key):
                self.files[index] = record
        self.built.clear()

    @rule(index=INDICES, epoch=st.integers(0, 9))
    def kill(self, index, epoch):
        """Another process is killed between writing and renaming, if it has anything to store."""
        if index >= len(self.dataset):
            return
        key = self.dataset.policy.key(index, epoch)
        hit = self.files.get(index) == (index, key.generation, self.settings)
        killed = not hit and not self.dataset.policy.is_last_use(key)
        process = get_context("fork").Process(target=self.die, args=(index, epoch))
        process.start()
        process.join()
        assert process.exitcode == (-signal.SIGKILL if killed else 0)
        assert len(temps(self.path)) == killed  # the audit's start removes it

    def die(self, index, epoch):
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        with Caught():
            self.dataset[IndexEpoch(index, epoch)]

    @precondition(lambda self: any(self.files.values()))
    @rule(data=st.data(), kind=st.sampled_from(sorted(DAMAGES)))
    def damage(self, data, kind):
        index = self.draw_file(data, sound=True)  # half of twice a record would be sound again
        DAMAGES[kind](self.file(index))
        self.files[index] = None

    @precondition(lambda self: any(self.files.values()))
    @rule(data=st.data(), bit=st.integers(0, 7))
    def flip(self, data, bit):
        index = self.draw_file(data, sound=True)
        content = bytearray(self.file(index).read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << bit
        self.file(index).write_bytes(content)
        self.files[index] = None

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def delete(self, data):
        index = self.draw_file(data)
        self.file(index).unlink()
        del self.files[index]

    @precondition(lambda self: self.files)
    @rule(data=st.data(), other=INDICES)
    def copy_over(self, data, other):
        index = self.draw_file(data)
        if index != other:
            shutil.copy(self.file(index), self.file(other))
            self.files[other] = self.files[index]

    @invariant()
    def the_audit_agrees(self):
        found = check(DirectoryStore(self.path), size=4)
        assert found.samples == len(self.files)
        damaged = {self.file(index).name for index, record in self.files.items() if not record}
        assert set(found.damaged) == damaged
        assert found.temps == found.strays == []

    def teardown(self):
        if hasattr(self, "path"):
            shutil.rmtree(self.path)


StoreMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
pytestmark = pytest.mark.filterwarnings(FORKS)
test_the_store_agrees_with_a_dict = StoreMachine.TestCase
