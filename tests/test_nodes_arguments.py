"""nodes.ReuseMapper: its arguments, good and bad."""

import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from nodes_helpers import (
    INLINE,
    MARKS,
    PROCESSES,
    THREADS,
    expected_pass,
    sample_of,
    variant,
)

from reuseloader import IndexEpoch, ReusePolicy
from reuseloader.nodes import ReuseMapper, ReuseSampler

pytestmark = MARKS


@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        (TypeError, "source", [IndexEpoch(0, 0)]),
        (TypeError, "source", None),
        (TypeError, "build", None),
        (TypeError, "build", "build"),
        (TypeError, "path", None),
        (TypeError, "path", 3),
        (TypeError, "path", b"path"),
        (ValueError, "path", ""),
        (TypeError, "policy", 3),
        (ValueError, "size", -1),
        (TypeError, "size", 1.0),
        (TypeError, "size", True),
        (TypeError, "fingerprint", None),
        (TypeError, "fingerprint", b"x"),
        (TypeError, "save", 1),
        (TypeError, "load", "load"),
        (TypeError, "finish", 1),
        (ValueError, "format", "npy"),
        (ValueError, "format", None),
        (ValueError, "num_workers", -1),
        (TypeError, "num_workers", 1.0),
        (TypeError, "num_workers", True),
        (TypeError, "num_workers", None),
        (TypeError, "in_order", 1),
        (TypeError, "in_order", None),
        (ValueError, "method", "threads"),
        (ValueError, "method", None),
        (ValueError, "max_concurrent", 0),
        (ValueError, "max_concurrent", -3),
        (TypeError, "max_concurrent", 1.5),
        (TypeError, "max_concurrent", True),
        (ValueError, "snapshot_frequency", -1),
        (TypeError, "snapshot_frequency", 0.5),
        (TypeError, "snapshot_frequency", None),
        (ValueError, "prebatch", 0),
        (TypeError, "prebatch", 2.0),
        (TypeError, "worker_init_fn", 1),
        (ValueError, "multiprocessing_context", "threads"),
        (ValueError, "multiprocessing_context", 3),
    ],
    ids=repr,
)
def test_bad_arguments(tmp_path, error, name, value):
    """One error at once that names the argument and shows the value, whatever the method."""
    policy = ReusePolicy(2)
    for method in ("thread", "process"):
        options = {
            "source": ReuseSampler(3, policy),
            "build": sample_of,
            "path": tmp_path,
            "policy": policy,
            "num_workers": 1,
            "method": method,
            name: value,
        }
        with pytest.raises(error, match=name) as caught:
            ReuseMapper(*[options.pop(n) for n in ("source", "build", "path", "policy")], **options)
        assert repr(value) in str(caught.value)


class Items(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return index


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([1])


@pytest.mark.parametrize(("build", "word"), [(Items(), "Dataset"), (Stream(), "stream")])
def test_a_dataset_is_no_build(tmp_path, build, word):
    """A dataset in the place of build is a TypeError that says what to pass instead."""
    with pytest.raises(TypeError, match=word):
        INLINE.mapper(tmp_path, build)


def test_an_unusable_path(tmp_path):
    """It fails at construction, with the path in the message."""
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        with pytest.raises(OSError, match=str(file)):
            INLINE.mapper(path)


def test_options_are_keywords(tmp_path):
    """What follows the policy is given by name."""
    policy = ReusePolicy(2)
    with pytest.raises(TypeError):
        ReuseMapper(ReuseSampler(3, policy), sample_of, tmp_path, policy, 3)


def test_integers_of_any_type(tmp_path):
    """Numbers may be NumPy or torch integers; a path may be a str or a Path."""
    policy = ReusePolicy(2)
    for path in (tmp_path, str(tmp_path)):
        mapper = ReuseMapper(
            ReuseSampler(3, policy),
            sample_of,
            path,
            policy,
            size=np.int64(3),
            num_workers=torch.tensor(1),
            max_concurrent=np.uint8(2),
            snapshot_frequency=np.int32(1),
            prebatch=np.int64(2),
        )
        with mapper:
            assert len(list(mapper)) == 3


def test_the_directory_is_made_absolute(tmp_path, monkeypatch):
    """A change of the working directory does not move the samples."""
    monkeypatch.chdir(tmp_path)
    with INLINE.loader("samples") as loader:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        list(loader)
    assert list(Path("..").glob("samples/*.pt"))
    assert not os.listdir(".")


def test_two_mappers_side_by_side(tmp_path):
    """Graphs that are alive at the same time do not know of each other."""
    graphs = [PROCESSES, variant(THREADS, lifetime=2), variant(PROCESSES, seed=1)]
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(variant(graph, prefetch=2).loader(tmp_path / str(number)))
            for number, graph in enumerate(graphs)
        ]
        for epoch in range(3):
            iterators = [iter(loader) for loader in loaders]
            rows = list(zip(*iterators, strict=True))
            for graph, samples in zip(graphs, zip(*rows, strict=True), strict=True):
                assert list(samples) == expected_pass(graph.policy, epoch, graph.size)
