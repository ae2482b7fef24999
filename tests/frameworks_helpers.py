"""Samples that carry their key, as tensors that every framework can move and split."""

import torch

from reuseloader import ReuseDataLoader, ReusePolicy

SIZE, BATCH = 20, 4
STEPS = SIZE // BATCH
POLICY = ReusePolicy(3, 5)


def build(key):
    """(index, a place for the epoch, generation, seed)."""
    return torch.tensor([key.index, -1, key.generation, key.seed])


def finish(sample, key):
    sample[1] = key.epoch
    return sample


def loader_of(path, **options):
    """A shuffled ReuseDataLoader of such samples."""
    options = {"batch_size": BATCH, "shuffle": True, "finish": finish, **options}
    return ReuseDataLoader(build, SIZE, path, lifetime=POLICY.lifetime, seed=POLICY.seed, **options)


def rows(batch):
    """The samples of a batch as tuples."""
    return [tuple(row) for row in batch.tolist()]


def row(index, epoch):
    """What a right loader delivers for index and epoch."""
    key = POLICY.key(index, epoch)
    return key.index, key.epoch, key.generation, key.seed


def order(epoch):
    """What a right loader delivers in an epoch, in its order."""
    return [row(POLICY.order(position, epoch, SIZE), epoch) for position in range(SIZE)]


def batches(epoch):
    """The same, in batches."""
    samples = order(epoch)
    return [samples[i : i + BATCH] for i in range(0, SIZE, BATCH)]
