import io
import os
import pickle
import random
import shutil
import socket
from pathlib import Path

import pytest
import torch
from helpers import (
    FOREVER,
    ODD_ERRORS,
    SIZE,
    Caught,
    big_sample,
    bits,
    expected,
    keys,
    names,
    overwrite,
    right,
    run_pass,
    sample_of,
    snapshot,
    temps,
)

from reuseloader import IndexEpoch, ReuseDataset, ReusePolicy


def instead(make):
    """A damage that puts something else in the place of a file."""

    def damage(path):
        path.unlink()
        make(path)

    return damage


def flip(content, place):
    changed = bytearray(content)
    changed[place] ^= 0x10
    return bytes(changed)


def foreign_torch_file(content):
    file = io.BytesIO()
    torch.save({"index": 2, "tensor": torch.zeros(3)}, file)
    return file.getvalue()


def bind_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # a socket's path must be short


def prepend_hole(path):
    trailer = path.read_bytes()[-80:]
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.seek(2**40)
        file.write(trailer)


MARGIN = 8000  # bytes in front of a block that `big_sample` surely contains
DAMAGES = {
    "empty": overwrite(lambda b: b""),
    "one byte": overwrite(lambda b: b[:1]),
    "half": overwrite(lambda b: b[: len(b) // 2]),
    "all but one byte": overwrite(lambda b: b[:-1]),
    "all but the first byte": overwrite(lambda b: b[1:]),
    "one byte more": overwrite(lambda b: b + b"\0"),
    "twice": overwrite(lambda b: b + b),
    "zeros": overwrite(lambda b: bytes(len(b))),
    "trailer alone": overwrite(lambda b: b[-80:]),
    "no trailer": overwrite(lambda b: b[:-80]),
    "zeroed trailer": overwrite(lambda b: b[:-80] + bytes(80)),
    "zeroed start": overwrite(lambda b: bytes(4096) + b[4096:]),
    "zeroed block": overwrite(lambda b: b[:MARGIN] + bytes(4096) + b[MARGIN + 4096 :]),
    "zeroed end": overwrite(lambda b: b[:-4096] + bytes(4096)),
    "random": overwrite(lambda b: random.Random(1).randbytes(len(b))),
    "text": overwrite(lambda b: b"hello world\n"),
    "flipped first byte": overwrite(lambda b: flip(b, 0)),
    "flipped payload": overwrite(lambda b: flip(b, len(b) // 2)),
    "flipped magic": overwrite(lambda b: flip(b, -80)),
    "flipped generation": overwrite(lambda b: flip(b, -64)),
    "flipped checksum": overwrite(lambda b: flip(b, -10)),
    "flipped last byte": overwrite(lambda b: flip(b, -1)),
    "pickle": overwrite(lambda b: pickle.dumps(("no", "stamp"))),
    "torch file": overwrite(foreign_torch_file),
    "dangling link": instead(lambda path: path.symlink_to("nowhere")),
    "link to itself": instead(lambda path: path.symlink_to(path.name)),
    "link to a device": instead(lambda path: path.symlink_to("/dev/zero")),
    "pipe": instead(lambda path: os.mkfifo(path)),
    "socket": instead(bind_socket),
    "hole of a terabyte": lambda path: os.truncate(path, 2**40),
    "hole of a terabyte before the trailer": prepend_hole,
}
SILENT = {  # nothing is damaged, there is just no sample of this stamp
    "vanished": lambda path: path.unlink(),
    "sample of another index": lambda path: shutil.copy(path.with_name("00000001.pt"), path),
}


@pytest.mark.parametrize("damage", [*DAMAGES, *SILENT])
def test_every_damage_is_built_anew(damage, store, monkeypatch):
    """A damaged file costs one build and one warning with its path; then it is as good as new."""
    dataset = ReuseDataset(big_sample, SIZE, store, FOREVER)
    whole = [bits(sample) for sample in run_pass(dataset, 0)]
    path = store / "00000002.pt"
    content = path.read_bytes()
    monkeypatch.chdir(store)
    {**DAMAGES, **SILENT}[damage](path)
    before = snapshot(store)
    with Caught() as caught:
        assert [bits(sample) for sample in run_pass(dataset, 1)] == whole
        after = snapshot(store)
        assert [name for name in after if after[name] != before.get(name)] == [path.name]
        assert [bits(sample) for sample in run_pass(dataset, 2)] == whole
        assert snapshot(store) == after
        dataset.close()
    assert path.read_bytes() == content
    assert not path.is_symlink()
    if damage in SILENT:
        assert not caught
    else:
        assert len(caught) == 1
        assert str(path) in caught[0]


def test_a_large_sample_is_read(store):
    """A record of 70 MB is a sample as any other."""
    dataset = ReuseDataset(lambda key: bytes(70 * 2**20), SIZE, store, FOREVER)
    first = dataset[2]
    before = snapshot(store)
    assert dataset[2] == first
    assert snapshot(store) == before


@pytest.mark.leaves("a directory")
@pytest.mark.parametrize("full", [False, True], ids=["empty", "full"])
def test_a_directory_in_place_of_a_file_is_left_alone(full, store, log):
    """A directory where a file belongs is built around, with a warning for reading and storing."""
    dataset = ReuseDataset(log.build, SIZE, store, FOREVER)
    run_pass(dataset, 0)
    log.take()
    path = store / "00000002.pt"
    path.unlink()
    path.mkdir()
    if full:
        (path / "mine.txt").write_text("mine")
    with Caught() as caught:
        assert right(dataset, 1)
        assert right(dataset, 2)
        dataset.close()
    assert log.indices() == [2, 2]
    assert path.is_dir()
    assert names(path) == (["mine.txt"] if full else [])
    assert temps(store) == []
    assert len(caught) == 2
    assert all(str(path) in text for text in caught)


def test_many_damaged_files_are_one_warning(store, log):
    """However many files are damaged, there is one warning, and every sample is right."""
    dataset = ReuseDataset(log.build, SIZE, store, FOREVER)
    run_pass(dataset, 0)
    log.take()
    for epoch in (1, 2):
        for path in store.glob("*.pt"):
            path.write_bytes(b"rubbish")
        with Caught() as caught:
            assert right(dataset, epoch)
        assert log.indices() == list(range(SIZE))
        assert len(caught) == (1 if epoch == 1 else 0)


def test_another_dataset_warns_for_itself(store):
    """Once per dataset is what "once" means: a second one on the same files warns again."""
    for _ in range(2):
        dataset = ReuseDataset(sample_of, SIZE, store, FOREVER)
        run_pass(dataset, 0)
        (store / "00000003.pt").write_bytes(b"rubbish")
        with Caught() as caught:
            assert right(dataset, 1)
        assert len(caught) == 1


@pytest.mark.leaves("damage")
def test_damage_at_the_last_use_is_built_and_not_stored(store, log):
    """At its last use a damaged sample is built anew, but not stored any more."""
    policy = ReusePolicy(3)
    dataset = ReuseDataset(log.build, 1, store, policy)
    run_pass(dataset, 0)
    path = store / "00000000.pt"
    path.write_bytes(b"rubbish")
    with Caught() as caught:
        assert right(dataset, 2)
    assert len(caught) == 1
    assert log.indices() == [0, 0]
    assert path.read_bytes() == b"rubbish"


def test_a_late_older_file_is_stale(store, log):
    """An older generation that a process of yesterday writes late is built anew, in silence."""
    policy = ReusePolicy(2)
    dataset = ReuseDataset(log.build, 1, store, policy)
    path = store / "00000000.pt"
    run_pass(dataset, 0)
    old = path.read_bytes()
    run_pass(dataset, 2)
    path.write_bytes(old)
    log.take()
    assert right(dataset, 3)
    assert log.take() == keys(policy, 3, [0])
    run_pass(dataset, 2)
    log.take()
    assert right(dataset, 3)
    assert log.take() == []


class Bomb:
    """A pickle that does something when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("trailer", [False, True])
def test_a_planted_pickle_is_not_run(trailer, store, tmp_path):
    """A file that this run's settings did not write is never unpickled, only built over."""
    mark = tmp_path / "mark"
    dataset = ReuseDataset(sample_of, SIZE, store, FOREVER)
    run_pass(dataset, 0)
    path = store / "00000002.pt"
    payload = pickle.dumps(Bomb(mark))
    path.write_bytes(payload + path.read_bytes()[-80:] if trailer else payload)
    with Caught() as caught:
        assert right(dataset, 1)
    assert len(caught) == 1
    assert not mark.exists()
    pickle.loads(payload)
    assert mark.exists()


def test_what_is_stale_or_damaged_is_never_loaded(store):
    """That a record is old, of other settings or not sound is known before load sees a byte."""
    loads = []

    def load(file):
        loads.append(file)
        return torch.load(file, weights_only=False)

    def dataset(seed):
        return ReuseDataset(sample_of, SIZE, store, ReusePolicy(4, seed), load=load)

    assert right(dataset(0), 0)
    assert right(dataset(1), 0)  # other settings
    assert right(dataset(1), 4)  # the next generation
    (store / "00000000.pt").write_bytes((store / "00000000.pt").read_bytes()[1:])
    with Caught():
        assert bits(dataset(1)[IndexEpoch(0, 5)]) == expected(ReusePolicy(4, 1), 0, 5)
    assert loads == []
    assert bits(dataset(1)[IndexEpoch(0, 6)]) == expected(ReusePolicy(4, 1), 0, 6)
    assert len(loads) == 1


@pytest.mark.parametrize("change", ["generation", "lifetime", "seed", "fingerprint", "save"])
def test_other_settings_build_anew_in_silence(change, store, log):
    """What was stored under other settings is never read, and back again neither."""
    base = {"lifetime": 4, "seed": 0, "fingerprint": "a", "save": torch.save, "epoch": 0}
    there = {"lifetime": 5, "seed": 1, "fingerprint": "b", "save": pickle.dump}
    other = {**base, change: there[change]} if change != "generation" else {**base, "epoch": 4}
    for run in (base, other, base):
        dataset = ReuseDataset(
            log.build,
            1,
            store,
            ReusePolicy(run["lifetime"], run["seed"]),
            fingerprint=run["fingerprint"],
            save=run["save"],
            load=pickle.load if run["save"] is pickle.dump else None,
        )
        assert right(dataset, run["epoch"])
        assert log.indices() == [0]
        assert right(dataset, run["epoch"] + 1)
        assert log.indices() == []
        dataset.close()


def no_numpy_core(file):
    raise ModuleNotFoundError("No module named 'numpy._core'")


def no_such_class(file):
    raise AttributeError("Can't get attribute 'Sample' on <module '__main__'>")


def stop(file):
    raise StopIteration


def bad_value(file):
    raise ValueError("cannot reshape")


def mute(file):
    raise ODD_ERRORS["__str__ raises"]()


def test_a_load_that_fails_without_words_is_a_miss(store, log):
    """A load whose error cannot even be printed is a miss; the warning has the error's type."""
    dataset = ReuseDataset(log.build, SIZE, store, FOREVER, load=mute)
    with Caught() as caught:
        for epoch in range(2):
            assert right(dataset, epoch)
        dataset.close()
    assert log.indices() == sorted([*range(SIZE)] * 2)
    assert len(caught) == 1
    assert "Mute" in caught[0]


@pytest.mark.parametrize("load", [no_numpy_core, no_such_class, stop, bad_value])
def test_a_failing_load_is_a_miss_with_its_reason(load, store, log):
    """A sample that load cannot read is built at each use, and the one warning has the reason."""
    dataset = ReuseDataset(log.build, SIZE, store, FOREVER, load=load)
    with Caught() as caught:
        for epoch in range(3):
            assert right(dataset, epoch)
        dataset.close()
    assert log.indices() == sorted([*range(SIZE)] * 3)
    assert len(caught) == 1
    assert str(store / "00000000.pt") in caught[0]
    with pytest.raises(Exception) as cause:  # noqa: PT011
        load(None)
    assert f"{cause.typename}: {cause.value}" in caught[0]
