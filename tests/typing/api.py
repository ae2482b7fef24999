"""What a type checker must see in the public API: ``mypy --strict tests/typing/api.py``."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, assert_type

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torchdata.nodes import BaseNode, Batcher, IterableWrapper, Loader, Prefetcher

from reuseloader import (
    FromDataset,
    ImpureBuildError,
    IndexEpoch,
    LMDBStore,
    ReuseDataLoader,
    ReuseDataset,
    ReuseError,
    ReuseKey,
    ReusePolicy,
    ReuseSampler,
    ReuseWarning,
    StateMismatchError,
    advise,
    check_build,
    fingerprint_of,
)
from reuseloader import nodes as reuse_nodes


def build(key: ReuseKey) -> torch.Tensor:
    """Prepare a sample."""
    assert_type(key.index, int)
    assert_type(key.epoch, int)
    assert_type(key.generation, int)
    assert_type(key.use, int)
    assert_type(key.seed, int)
    assert_type(key.first_epoch, int)
    assert_type(key.use_seed, int)
    assert_type(key.rng(), np.random.Generator)
    assert_type(key.generator(), torch.Generator)
    with key.seeded() as nothing:
        assert_type(nothing, None)
    return torch.rand(3, generator=key.generator())


def finish(sample: torch.Tensor, key: ReuseKey) -> torch.Tensor:
    """Add a cheap random last part."""
    with key.seeded(key.use_seed):
        return sample + torch.rand(3)


def save(sample: torch.Tensor, file: BinaryIO) -> None:
    """Write a sample."""
    np.save(file, sample.numpy())


def load(file: BinaryIO) -> torch.Tensor:
    """Read a sample."""
    return torch.from_numpy(np.load(file))


class Build:
    """A build that is an instance."""

    def __call__(self, key: ReuseKey) -> dict[str, int]:
        """Prepare a sample."""
        return {"index": key.index}


class Records:
    """A store of the user's: no base class, the methods alone."""

    def read(self, index: int) -> bytes | None:
        """Return the record of an index."""
        return None

    def write(self, index: int, record: bytes) -> None:
        """Replace the record of an index."""

    def close(self) -> None:
        """Release nothing."""


# the policy
policy = ReusePolicy(4, seed=3, balanced=False)
assert_type(policy.lifetime, int)
assert_type(policy.seed, int)
assert_type(policy.balanced, bool)
assert_type(policy.key(3, 5), ReuseKey)
assert_type(policy.order(0, 1, 10), int)
assert_type(policy.order(np.arange(10), 1, 10), npt.NDArray[np.int64])
assert_type(policy.builds(1, 10), int)
pair = IndexEpoch(3, 5)
assert_type(pair.index, int)
assert_type(pair.epoch, int)
index, epoch = pair
assert_type(index, int)
assert_type(epoch, int)

# the dataset
dataset = ReuseDataset(
    build, 10, Path("store"), policy, fingerprint="v1", save=save, load=load, finish=finish
)
plain: Dataset[Any] = dataset
assert_type(dataset.epoch, int)
assert_type(dataset.policy, ReusePolicy)
assert_type(len(dataset), int)
dataset.set_epoch(3)
dataset[3]
dataset[pair]
dataset[[pair, pair]]
with ReuseDataset(Build(), 10, Records(), policy, format="torch") as entered:
    assert_type(entered, ReuseDataset)
ReuseDataset(build, 10, LMDBStore(Path("store")), policy)
ReuseDataset(FromDataset([1, 2, 3]), 3, "store", policy)
from_dataset: Callable[[ReuseKey], Any] = FromDataset(dataset)
dataset.close()

# the check before training, and what the samples depend on
check_build(build, policy, size=10)
check_build(
    Build(),
    policy,
    size=10,
    samples=4,
    epochs=20,
    save=save,
    load=load,
    format="torch",
    finish=finish,
    contract=False,
    multiprocessing_context="fork",
)
assert_type(fingerprint_of(build, Path("labels.csv"), {"size": 224}, np), str)

# the sampler
sampler = ReuseSampler(10, policy, start_epoch=1, shuffle=False)
ReuseSampler(10, policy, rank=0, world_size=2, placement="local", drop_last=True)
pairs: Sampler[IndexEpoch] = sampler
assert_type(iter(sampler), Iterator[IndexEpoch])
assert_type(len(sampler), int)
assert_type(sampler.epoch, int)
assert_type(sampler.state_dict(), dict[str, int | str])
sampler.load_state_dict(sampler.state_dict())
sampler.set_epoch(2)
DataLoader(dataset, sampler=sampler, batch_size=4)

# the loader
with ReuseDataLoader(
    build,
    10,
    "store",
    lifetime=4,
    seed=3,
    start_epoch=2,
    fingerprint="v1",
    save=save,
    load=load,
    format="torch",
    finish=finish,
    balanced=True,
    rank=0,
    world_size=2,
    placement="shared",
    batch_size=4,
    shuffle=True,
    num_workers=2,
    persistent_workers=True,
) as loader:
    assert_type(loader, ReuseDataLoader)
standard: DataLoader[Any] = loader
assert_type(loader.policy, ReusePolicy)
assert_type(loader.dataset, ReuseDataset)
assert_type(loader.epoch, int)
assert_type(loader.next_epoch, int)
assert_type(len(loader), int)
assert_type(iter(loader), Iterator[Any])
assert_type(loader.state_dict(), dict[str, int])
loader.load_state_dict({"epoch": 3})
loader.set_epoch(3)
loader.close()

# the nodes
node = reuse_nodes.ReuseSampler(10, policy, start_epoch=1, shuffle=True)
reuse_nodes.ReuseSampler(10, policy, rank=0, world_size=2, placement="local", drop_last=True)
source: BaseNode[IndexEpoch] = node
mapper = reuse_nodes.ReuseMapper(
    node,
    build,
    "store",
    policy,
    size=10,
    fingerprint="v1",
    finish=finish,
    num_workers=2,
    in_order=False,
    method="process",
    multiprocessing_context="spawn",
    max_concurrent=4,
    snapshot_frequency=1,
    prebatch=2,
    worker_init_fn=None,
)
graph: Loader[Any] = Loader(Prefetcher(Batcher(mapper, 4), 2))
wrapped = reuse_nodes.WithEpoch(IterableWrapper(range(10)), start_epoch=1)
with reuse_nodes.ReuseMapper(wrapped, Build(), Records(), policy) as within:
    assert_type(within, reuse_nodes.ReuseMapper)
mapper.close()

# advice
advice = advise(build, 10, "store", batch_size=4, step=0.1)
advise(Build(), 10, Path("store"), batch_size=4, step=lambda batch: None, pipeline="dataloader")
advise(build, 10, LMDBStore(Path("store")), batch_size=4, finish=finish, ranks_per_machine=2)
assert_type(advice.lifetime, int | None)
assert_type(advice.num_workers, int)
assert_type(str(advice), str)

# errors
error: ReuseError = StateMismatchError("of another order")
impure: ReuseError = ImpureBuildError("of another sample")
value_error: ValueError = StateMismatchError("of another order")
warning: UserWarning = ReuseWarning("something costs speed")
