"""Hugging Face Accelerate, the real one: what prepared loaders deliver, epoch by epoch."""

import warnings
from itertools import chain, islice

import pytest
import torch
from frameworks_helpers import (
    BATCH,
    POLICY,
    SIZE,
    STEPS,
    batches,
    build,
    finish,
    loader_of,
    rows,
    run_two,
)
from helpers import FORKS, due
from torch.utils.data import DataLoader

from reuseloader import ReuseDataLoader, ReuseDataset, ReuseSampler, ReuseWarning

accelerate = pytest.importorskip("accelerate", reason="needs the extra 'frameworks'")

from accelerate.data_loader import prepare_data_loader, skip_first_batches  # noqa: E402
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(FORKS),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata's own
]

workers = pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["main", "workers", "persistent"],
)


def forget():
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()


@pytest.fixture(autouse=True)
def _alone():
    """Accelerate keeps what it knows in classes: each test begins without."""
    yield
    forget()


def accelerator_of(folder=None, **options):
    return accelerate.Accelerator(
        cpu=True,
        project_config=ProjectConfiguration(str(folder)) if folder else None,
        dataloader_config=DataLoaderConfiguration(**options),
    )


def plain_loader_of(path, **options):
    """DataLoader, ReuseDataset and ReuseSampler."""
    dataset = ReuseDataset(build, SIZE, path, POLICY, finish=finish)
    return DataLoader(dataset, BATCH, sampler=ReuseSampler(SIZE, POLICY), **options)


def drawn(loader):
    return [rows(batch) for batch in loader]


@workers
@pytest.mark.parametrize("dispatch", [False, True])
def test_prepare(dispatch, options, store):
    """The recipe, set_epoch on what prepare returns, keeps start_epoch and every epoch after."""
    loader = loader_of(store, start_epoch=37, **options)
    prepared = accelerator_of(dispatch_batches=dispatch).prepare(loader)
    for epoch in range(loader.next_epoch, 40):
        prepared.set_epoch(epoch)
        assert drawn(prepared) == batches(epoch)
        assert loader.epoch == epoch
    assert loader.next_epoch == 40


@workers
def test_prepare_without_the_recipe(options, store):
    """What prepare returns counts from 0, whatever start_epoch; each complete pass is the next."""
    prepared = accelerator_of().prepare(loader_of(store, start_epoch=37, **options))
    assert [drawn(prepared) for _ in range(3)] == [batches(epoch) for epoch in range(3)]
    prepared.iteration = 37
    assert [drawn(prepared) for _ in range(2)] == [batches(epoch) for epoch in (37, 38)]


def test_a_broken_off_pass_is_repeated_or_set(store):
    """Accelerate does not count a broken-off pass; set_epoch decides all the same."""
    prepared = accelerator_of().prepare(loader_of(store))
    next(iter(prepared))
    assert drawn(prepared) == batches(0)
    next(iter(prepared))
    prepared.set_epoch(2)
    assert drawn(prepared) == batches(2)


@pytest.mark.parametrize("make", [loader_of, plain_loader_of])
@pytest.mark.parametrize("split", [False, True])
def test_two_processes_share_a_loader(split, make, store):
    """Each process gets every second batch, or half of each, of the one order of the epoch."""
    for index in (0, 1):
        prepared = prepare_data_loader(
            make(store), num_processes=2, process_index=index, split_batches=split
        )
        for epoch in (0, 1, 2, 7, 3):
            prepared.set_epoch(epoch)
            half = slice(index * BATCH // 2, (index + 1) * BATCH // 2)
            if split:
                wanted = [batch[half] for batch in batches(epoch)]
            else:  # STEPS is odd: the first batch comes again
                wanted = (batches(epoch) + batches(epoch)[:1])[index::2]
            assert drawn(prepared) == wanted


@workers
@pytest.mark.parametrize("processes", [1, 2])
def test_skip_first_batches(processes, options, store, log):
    """It goes on in the epoch that was set, and nothing is built of what it skips."""
    loader = ReuseDataLoader(
        log.build,
        SIZE,
        store,
        lifetime=POLICY.lifetime,
        seed=POLICY.seed,
        shuffle=True,
        batch_size=BATCH,
        collate_fn=list,
        **options,
    )
    prepared = prepare_data_loader(loader, num_processes=processes, process_index=0)
    for epoch in range(2):
        prepared.set_epoch(epoch)
        list(prepared)
    log.take()
    rest = skip_first_batches(prepared, 2)
    rest.set_epoch(2)
    indices = [[sample["index"] for sample in batch] for batch in rest]
    assert indices == [[r[0] for r in batch] for batch in batches(2)][::processes][2:]
    assert set(log.indices()) <= set(chain(*indices))
    if processes == 1:
        assert set(due(POLICY, 2, SIZE)) & set(chain(*indices))


@workers
@pytest.mark.parametrize("stop", range(1, STEPS))
def test_stateful_mid_epoch_resume(stop, options, store, tmp_path):
    """use_stateful_dataloader, save_state and load_state, and the epoch: exact in mid-epoch."""
    saved = {}
    for resumes in (False, True):
        accelerator = accelerator_of(tmp_path, use_stateful_dataloader=True)
        prepared = accelerator.prepare(loader_of(store, **options))
        if not resumes:
            prepared.set_epoch(0)
            assert drawn(prepared) == batches(0)
            prepared.set_epoch(1)
            first = [rows(batch) for batch in islice(prepared, stop)]
            assert first == batches(1)[:stop]
            accelerator.save_state(tmp_path / "saved")
            saved["epoch"] = prepared.iteration
        else:
            accelerator.load_state(tmp_path / "saved")
            for epoch, wanted in ((saved["epoch"], batches(1)[stop:]), (2, batches(2))):
                prepared.set_epoch(epoch)
                assert drawn(prepared) == wanted
        forget()


@workers
def test_state_of_a_registered_loader(options, store, tmp_path):
    """register_for_checkpointing(loader) keeps the epoch with save_state and load_state."""
    for start, end in ((0, 2), (2, 4)):
        accelerator = accelerator_of(tmp_path)
        loader = loader_of(store, **options)
        prepared = accelerator.prepare(loader)
        accelerator.register_for_checkpointing(loader)
        if start:
            accelerator.load_state(tmp_path / "saved")
        assert loader.next_epoch == start
        for epoch in range(loader.next_epoch, end):
            prepared.set_epoch(epoch)
            assert drawn(prepared) == batches(epoch)
        accelerator.save_state(tmp_path / "saved")
        forget()


# --- two processes --------------------------------------------------------------------------------


def run_rank(folder):
    """All that one of two real ranks draws."""
    torch.set_num_threads(1)
    found = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", ReuseWarning)
        for dispatch in (False, True):
            loader = loader_of(f"{folder}/store", start_epoch=4)
            prepared = accelerator_of(dispatch_batches=dispatch).prepare(loader)
            passes = []
            for epoch in range(loader.next_epoch, 7):
                prepared.set_epoch(epoch)
                passes.append(drawn(prepared))
            found["dispatched" if dispatch else "sharded"] = passes
        accelerator = accelerator_of()
        ours = loader_of(
            f"{folder}/store",
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
            start_epoch=4,
        )
        found["ours"] = [drawn(ours) for _ in range(3)]
    found["caught"] = [str(record.message) for record in caught]
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two ranks of a group found in `run_rank`."""
    return run_two("test_frameworks_accelerate", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("how", ["sharded", "dispatched", "ours"])
def test_two_ranks(how, ranks):
    """Together the ranks get exactly the epoch's samples, whoever deals them out."""
    for number, epoch in enumerate((4, 5, 6)):
        per_rank = [found[how][number] for found in ranks]
        samples = [tuple(sample) for sample in chain(*chain(*per_rank))]
        assert set(samples) == set(chain(*batches(epoch)))
        if how == "sharded":
            wanted = batches(epoch) + batches(epoch)[:1]
            assert [[[tuple(s) for s in b] for b in r] for r in per_rank] == [
                wanted[0::2],
                wanted[1::2],
            ]
        else:
            assert len(samples) == SIZE
    assert [found["caught"] for found in ranks] == [[], []]
