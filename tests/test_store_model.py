import shutil
import tempfile
from pathlib import Path

from helpers import (
    Caught,
    bits,
    overwrite,
    sample_of,
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
        self.stored = {}  # index -> (settings, generation) of a sound record
        self.files = set()  # indices that have a file, sound or not
        self.sound = set()  # indices whose file is a sound record, of whatever stamp
        self.built = []
        self.start(2, 0, "")

    def build(self, key):
        self.built.append(key)
        return sample_of(key)

    @rule(lifetime=st.integers(1, 5), seed=st.integers(0, 1), fingerprint=st.sampled_from("ab"))
    def start(self, lifetime, seed, fingerprint):
        self.settings = lifetime, seed, fingerprint
        policy = ReusePolicy(lifetime, seed)
        self.dataset = ReuseDataset(self.build, 4, self.path, policy, fingerprint=fingerprint)

    @rule(index=INDICES, epoch=st.integers(0, 9))
    def fetch(self, index, epoch):
        key = self.dataset.policy.key(index, epoch)
        record = self.settings, key.generation
        with Caught():
            sample = self.dataset[IndexEpoch(index, epoch)]
        assert bits(sample) == bits(sample_of(key.first))
        if self.settings[0] > 1 and self.stored.get(index) == record:
            assert self.built == []
        else:
            assert self.built == [key.first]
            if not self.dataset.policy.is_last_use(key):
                self.stored[index] = record
                self.files.add(index)
                self.sound.add(index)
        self.built.clear()

    @precondition(lambda self: self.files)
    @rule(
        data=st.data(),
        kind=st.sampled_from(sorted(DAMAGES)),
    )
    def damage(self, data, kind):
        index = data.draw(st.sampled_from(sorted(self.files)))
        if index in self.sound:  # or half of twice a record would be sound again
            DAMAGES[kind](self.path / f"{index:08}.pt")
            self.stored.pop(index, None)
            self.sound.remove(index)

    @precondition(lambda self: self.files)
    @rule(data=st.data(), bit=st.integers(0, 7))
    def flip(self, data, bit):
        index = data.draw(st.sampled_from(sorted(self.files)))
        path = self.path / f"{index:08}.pt"
        content = bytearray(path.read_bytes())
        if index in self.sound:
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << bit
            path.write_bytes(content)
            self.stored.pop(index, None)
            self.sound.remove(index)

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def delete(self, data):
        index = data.draw(st.sampled_from(sorted(self.files)))
        (self.path / f"{index:08}.pt").unlink()
        self.files.remove(index)
        self.stored.pop(index, None)
        self.sound.discard(index)

    @precondition(lambda self: self.files)
    @rule(data=st.data(), other=INDICES)
    def copy_over(self, data, other):
        index = data.draw(st.sampled_from(sorted(self.files)))
        if index != other:
            shutil.copy(self.path / f"{index:08}.pt", self.path / f"{other:08}.pt")
            self.files.add(other)
            self.stored.pop(other, None)
            (self.sound.add if index in self.sound else self.sound.discard)(other)

    @invariant()
    def the_audit_agrees(self):
        found = check(DirectoryStore(self.path), size=4)
        assert found.samples == len(self.files)
        assert set(found.damaged) == {f"{i:08}.pt" for i in self.files - self.sound}
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
test_the_store_agrees_with_a_dict = StoreMachine.TestCase
