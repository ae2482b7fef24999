"""What people use in place of ReuseLoader, written as their users write it.

Each makes epochs of ``args.samples`` samples of which 1/L is built anew in each epoch (all, where
nothing is kept), in two workers where it has workers. What never refreshes by itself is cleared of
1/L of its samples before each epoch, as its users would have to.
"""

import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, default_collate
from torchdata.nodes import Batcher, Loader, Mapper, ParallelMapper, Prefetcher, SamplerWrapper
from work import Sample, sample_of, spin

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


class Built(Dataset[Sample]):
    """The expensive dataset: each access is a build with a new random seed."""

    def __init__(self, args: Any) -> None:
        self.samples, self.size, self.seconds = args.samples, args.size, args.build

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        spin(self.seconds)
        return sample_of(index, int.from_bytes(os.urandom(8)), self.size)


class Rival:
    """A pipeline; `epoch` gives the batches of one epoch."""

    name = "DataLoader"
    package = "torch"
    lacks = "builds everything in every epoch"
    keeps = False  # whether a sample is used more than once

    def __init__(self, path: Path, args: Any) -> None:
        self.path, self.args = path, args
        self.loader = self.loader_of(Built(args))

    def loader_of(self, dataset: Dataset[Any], workers: int = 2) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            self.args.batch,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    def due(self, epoch: int) -> range:
        """The samples that this epoch builds anew."""
        return range(epoch % self.args.lifetime, self.args.samples, self.args.lifetime)

    def epoch(self, epoch: int) -> Batches:
        return self.loader

    def close(self) -> None:
        pass


class Nodes(Rival):
    name = "torchdata nodes"
    package = "torchdata"

    def __init__(self, path: Path, args: Any) -> None:
        dataset = Built(args)
        node: Any = SamplerWrapper(RandomSampler(dataset))
        node = ParallelMapper(
            node, dataset.__getitem__, 2, method="process", multiprocessing_context="fork"
        )
        node = Mapper(Batcher(node, args.batch, drop_last=False), default_collate)
        self.loader = Loader(Prefetcher(node, 2))


class Cached(Built):
    """The dataset with a cache in ``folder``."""

    def __init__(self, folder: Path, args: Any) -> None:
        super().__init__(args)
        self.folder = folder

    def forget(self, index: int) -> None:
        """Have a sample built anew at its next use."""
        raise NotImplementedError

    def close(self) -> None:
        pass


class Cache(Rival):
    """A pipeline over a `Cached` that is made to forget what is due."""

    keeps = True
    dataset_class: type[Cached]

    def __init__(self, path: Path, args: Any) -> None:
        self.args = args
        self.dataset = self.dataset_class(path, args)
        self.loader = self.loader_of(self.dataset)

    def epoch(self, epoch: int) -> Batches:
        for index in self.due(epoch):
            self.dataset.forget(index)
        return self.loader

    def close(self) -> None:
        self.dataset.close()


class NaiveDataset(Cached):
    def __init__(self, folder: Path, args: Any) -> None:
        super().__init__(folder, args)
        folder.mkdir()

    def __getitem__(self, index: int) -> Sample:
        file = self.folder / f"{index}.pt"
        if file.exists():
            return torch.load(file)
        sample = super().__getitem__(index)
        torch.save(sample, file)
        return sample

    def forget(self, index: int) -> None:
        (self.folder / f"{index}.pt").unlink(missing_ok=True)


class JoblibDataset(Cached):
    def __init__(self, folder: Path, args: Any) -> None:
        super().__init__(folder, args)
        self.cached = import_module("joblib").Memory(folder, verbose=0).cache(self.array)

    def array(self, index: int) -> Any:
        tensor, label = super().__getitem__(index)
        return tensor.numpy(), label

    def __getitem__(self, index: int) -> Sample:
        array, label = self.cached(index)
        return torch.from_numpy(array), label

    def forget(self, index: int) -> None:
        if self.cached.check_call_in_cache(index):
            self.cached.call_and_shelve(index).clear()


class DiskCacheDataset(Cached):
    def __init__(self, folder: Path, args: Any) -> None:
        super().__init__(folder, args)
        self.cache = import_module("diskcache").Cache(
            str(folder), size_limit=2**40, eviction_policy="none"
        )

    def __getitem__(self, index: int) -> Sample:
        stored = self.cache.get(index)
        if stored is None:
            tensor, label = super().__getitem__(index)
            stored = tensor.numpy(), label
            self.cache[index] = stored
        return torch.from_numpy(stored[0]), stored[1]

    def forget(self, index: int) -> None:
        self.cache.delete(index)

    def close(self) -> None:
        self.cache.close()


class Naive(Cache):
    name = "torch.save cache by hand"
    lacks = "never refreshes; an error after a kill in mid-write; no resume; any change is stale"
    dataset_class = NaiveDataset


class Joblib(Cache):
    name = "joblib.Memory"
    package = "joblib"
    lacks = "never refreshes; pickle only; no resume"
    dataset_class = JoblibDataset


class DiskCache(Cache):
    name = "diskcache"
    package = "diskcache"
    lacks = "never refreshes; pickle only; no resume"
    dataset_class = DiskCacheDataset
