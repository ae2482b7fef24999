"""Ranks as processes of a torch.distributed group (gloo), on one directory."""

import itertools
import json
import multiprocessing
import os
import signal
from collections import Counter
from contextlib import suppress

import pytest
import torch
import torch.distributed
from helpers import BOOK, FORKS, Caught, Log, bits, due, expected, flat, names, sample_files
from torch.utils.data import DataLoader
from torchdata.nodes import Batcher, Loader

from reuseloader import ReuseDataLoader, ReuseDataset, ReusePolicy, ReuseSampler, nodes
from reuseloader.audit import check
from reuseloader.store import DirectoryStore

pytestmark = pytest.mark.filterwarnings(FORKS)

SIZE, LIFETIME, SEED, EPOCHS = 43, 3, 5, 4
POLICY = ReusePolicy(LIFETIME, SEED)


def in_group(task, rank, world_size, folder, pipe):
    """Run ``task`` as one rank of a group, and send what it returns."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world_size
    )
    try:
        with Caught() as caught:
            answer = task(rank, world_size, folder)
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()
    pipe.send((answer, list(caught)))


def run_group(task, world_size, folder):
    """What ``task(rank, world_size, folder)`` returns and warns of, for each rank."""
    context = multiprocessing.get_context("spawn")
    children, answers = [], []
    for rank in range(world_size):
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=in_group, args=(task, rank, world_size, str(folder), there))
        child.start()
        there.close()
        children.append((child, here))
    for child, here in children:
        answers.append(here.recv())
        child.join()
        assert child.exitcode == 0
    return answers


def sample_passes(loader):
    """(index, whether it is right) of all samples of each epoch, in step with the other ranks."""
    passes = []
    for epoch in range(EPOCHS):
        passes.append(
            [(s["index"], bits(s) == expected(POLICY, s["index"], epoch)) for s in flat(loader)]
        )
        torch.distributed.barrier()  # whoever runs ahead would find less stored
    return passes


def with_loader(rank, world_size, folder):
    log = Log(os.path.join(folder, f"log{rank}"))
    os.makedirs(os.path.dirname(log.path))
    options = {"lifetime": LIFETIME, "seed": SEED, "shuffle": True, "collate_fn": list}
    with ReuseDataLoader(
        log.build, SIZE, f"{folder}/store", rank=rank, world_size=world_size, **options
    ) as loader:
        return sample_passes(loader), log.take()


def with_dataset_and_sampler(rank, world_size, folder):
    log = Log(os.path.join(folder, f"log{rank}"))
    os.makedirs(os.path.dirname(log.path))
    dataset = ReuseDataset(log.build, SIZE, f"{folder}/store", POLICY)
    sampler = ReuseSampler(SIZE, POLICY, rank=rank, world_size=world_size)
    options = {"num_workers": 1, "persistent_workers": True, "collate_fn": list}
    loader = DataLoader(dataset, 4, sampler=sampler, **options)
    return sample_passes(loader), log.take()


def with_nodes(rank, world_size, folder):
    log = Log(os.path.join(folder, f"log{rank}"))
    os.makedirs(os.path.dirname(log.path))
    node = nodes.ReuseSampler(SIZE, POLICY, rank=rank, world_size=world_size)
    with nodes.ReuseMapper(node, log.build, f"{folder}/store", POLICY, num_workers=2) as mapper:
        return sample_passes(Loader(Batcher(mapper, 4, drop_last=False))), log.take()


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("task", [with_loader, with_dataset_and_sampler, with_nodes])
def test_ranks_on_one_directory(task, world_size, tmp_path):
    """Real ranks get disjoint and complete, right samples, and build in step what is due."""
    answers = run_group(task, world_size, tmp_path)
    assert [caught for _, caught in answers] == [[]] * world_size
    padding = -SIZE % world_size
    built = {epoch: Counter() for epoch in range(EPOCHS)}
    for rank, ((passes, log), _) in enumerate(answers):
        for samples in passes:
            assert len(samples) == -(-SIZE // world_size)
            assert all(right for _, right in samples)
        for index, first_epoch, *_ in log:
            built[first_epoch][rank] += 1
            assert index in due(POLICY, first_epoch, SIZE)
    for epoch in range(EPOCHS):
        drawn = Counter(index for (passes, _), _ in answers for index, _ in passes[epoch])
        assert set(drawn) == set(range(SIZE))
        assert drawn.total() - SIZE == padding
        numbers = [built[epoch][rank] for rank in range(world_size)]
        assert max(numbers) - min(numbers) <= 1 + (padding > 0)
        assert POLICY.builds(epoch, SIZE) <= sum(numbers) <= POLICY.builds(epoch, SIZE) + padding
    store = tmp_path / "store"
    assert check(DirectoryStore(store), SIZE).clean
    assert len(sample_files(store)) == SIZE
    assert BOOK in names(store)


def part(rank, world_size, folder):
    """The pairs of an epoch that this number of ranks draws, from where the ones before stopped."""
    sampler = ReuseSampler(SIZE, POLICY, start_epoch=2, rank=rank, world_size=world_size)
    path = f"{folder}/state.json"
    if os.path.exists(path):
        with open(path) as file:
            sampler.load_state_dict(json.load(file))
    count = None if world_size == 3 else LIFETIME
    drawn = list(itertools.islice(iter(sampler), count))
    torch.distributed.barrier()
    if rank == 0:
        with open(path, "w") as file:
            json.dump(sampler.state_dict(), file)
    return drawn


def test_real_ranks_hand_over(tmp_path):
    """4 ranks stop, 2 go on and stop, 3 end the epoch, over one state in a file of JSON."""
    drawn = []
    for number, world_size in enumerate((4, 2, 3)):
        folder = tmp_path / str(number)
        folder.mkdir()
        if number:
            (tmp_path / str(number - 1) / "state.json").rename(folder / "state.json")
        for pairs, caught in run_group(part, world_size, folder):
            assert caught == []
            drawn += pairs
    assert {pair.epoch for pair in drawn} == {2}
    counts = Counter(pair.index for pair in drawn)
    assert set(counts) == set(range(SIZE))
    assert counts.total() - SIZE == -(SIZE - 4 * LIFETIME - 2 * LIFETIME) % 3


def forgetful(rank, world_size, folder):
    """What each of the three warns of, and how much it draws, told its rank or not."""
    options = {"lifetime": LIFETIME, "seed": SEED, "shuffle": True, "collate_fn": list}
    answers = {}
    makes = {
        "sampler": lambda **ranks: ReuseSampler(SIZE, POLICY, **ranks),
        "node": lambda **ranks: nodes.ReuseSampler(SIZE, POLICY, **ranks),
        "loader": lambda **ranks: ReuseDataLoader(
            int_of, SIZE, f"{folder}/store{rank}", **options, **ranks
        ),
    }
    for name, make in makes.items():
        for told in (False, True):
            with Caught() as caught:
                made = make(rank=rank, world_size=world_size) if told else make()
                for _ in range(3):
                    if name == "node":
                        made.reset()
                    count = sum(1 for _ in (flat(made) if name == "loader" else made))
            answers[f"{name} {told}"] = (list(caught), count)
    return answers


def int_of(key):
    return key.index


def test_who_forgets_the_rank_is_told_once(tmp_path):
    """In a group of several ranks each warns once, at the latest when it is drawn from."""
    for rank, (answers, others) in enumerate(run_group(forgetful, 2, tmp_path)):
        assert others == []
        for name, (caught, count) in answers.items():
            if name.endswith("True"):
                assert caught == []
                assert count == 22
            else:
                (text,) = caught
                assert "every rank would draw the same order" in text
                assert f"rank={rank}, world_size=2" in text
                assert count == SIZE  # and nothing is shared out


def late(rank, world_size, folder):
    """Made before there is a group, drawn from in it; and a group of one."""
    torch.distributed.destroy_process_group()
    counts = []
    with Caught() as caught:
        made = [ReuseSampler(SIZE, POLICY), nodes.ReuseSampler(SIZE, POLICY)]
    counts.append(len(caught))
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/again", rank=rank, world_size=world_size
    )
    for sampler in made:
        with Caught() as caught:
            for _ in range(2):
                next(iter(sampler))
        counts.append(len(caught))
    return counts


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_group_that_comes_later_is_noticed(world_size, tmp_path):
    """Without a group, or in a group of one, nothing is said; a later group is noticed in time."""
    for counts, caught in run_group(late, world_size, tmp_path):
        assert caught == []
        assert counts == ([0, 1, 1] if world_size == 2 else [0, 0, 0])


def train(rank, world_size, folder, pipe, kill_at):
    """One epoch of batches in step with the other ranks; each step is noted, then rank 0's state.

    Rank 1 is killed when it has drawn batch ``kill_at``.
    """
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group{kill_at}", rank=rank, world_size=world_size
    )
    node = nodes.ReuseSampler(SIZE, POLICY, rank=rank, world_size=world_size)
    mapper = nodes.ReuseMapper(node, int_of, f"{folder}/store", POLICY, num_workers=1)
    loader = Loader(Batcher(mapper, 4, drop_last=False))
    path = f"{folder}/state.json"
    if os.path.exists(path):
        with open(path) as file:
            loader.load_state_dict(json.load(file))
        torch.distributed.barrier()  # all have read it
    try:
        for step, batch in enumerate(loader):
            if rank == 1 and step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            torch.distributed.all_reduce(torch.ones(1))
            if rank == 0:
                with open(f"{path}.new", "w") as file:
                    json.dump(loader.state_dict(), file)
                os.replace(f"{path}.new", path)
            pipe.send(batch)
        pipe.send("ended")
    except Exception as error:
        pipe.send(f"{type(error).__module__}.{type(error).__name__}: {error}")
    mapper.close()


def run_ranks(folder, kill_at):
    """What each of two ranks sends until it ends."""
    context = multiprocessing.get_context("spawn")
    children = []
    for rank in range(2):
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=train, args=(rank, 2, str(folder), there, kill_at))
        child.start()
        there.close()
        children.append((child, here))
    sent = [[], []]
    for number, (child, here) in enumerate(children):
        with suppress(EOFError):
            while True:
                sent[number].append(here.recv())
        child.join()
    return sent


def test_a_killed_rank_ends_the_others_and_all_restart(tmp_path):
    """The other rank ends with torch's own error; from the last state the stream is as if whole."""
    (tmp_path / "whole").mkdir()
    whole = run_ranks(tmp_path / "whole", kill_at=None)
    assert [answers[-1] for answers in whole] == ["ended", "ended"]
    (tmp_path / "broken").mkdir()
    before = run_ranks(tmp_path / "broken", kill_at=3)
    assert before[0][-1].startswith(("builtins.RuntimeError: ", "torch.distributed."))
    assert len(before[0][:-1]) == len(before[1]) == 3
    after = run_ranks(tmp_path / "broken", kill_at=None)
    for rank, done in enumerate((before[0][:-1], before[1])):
        assert done + after[rank] == whole[rank]
