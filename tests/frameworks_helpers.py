"""Samples that carry their key, as tensors that every framework can move and split."""

import json
import os
import socket
import subprocess
import sys

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


def run_two(module, folder):
    """What ``module.run_rank(folder)`` returns in each of two processes that know their ranks."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    code = (
        f"import json, sys, {module} as module; found = module.run_rank(sys.argv[1]); "
        f"json.dump(found, open(sys.argv[2], 'w'))"
    )
    env = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    env |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder), str(folder / f"{rank}.json")],
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        for child in children:
            text, _ = child.communicate(timeout=120)
            assert child.returncode == 0, text
    finally:
        for child in children:
            child.kill()
            child.wait()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
