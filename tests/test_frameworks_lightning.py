"""PyTorch Lightning, the real one: what its Trainer draws from our loaders, epoch by epoch."""

import warnings
from functools import partial
from pathlib import Path

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
    order,
    row,
    rows,
    run_two,
)
from helpers import FORKS
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from reuseloader import ReuseDataset, ReuseSampler, ReuseWarning

lightning = pytest.importorskip("lightning", reason="needs the extra 'frameworks'")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.tuner import Tuner  # noqa: E402
from lightning.pytorch.utilities import CombinedLoader  # noqa: E402

# Lightning and torchdata with the newest torch, and what Lightning says of runs as small as these
THEIRS = [
    "ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning",
    "ignore:'set_vital' is deprecated:UserWarning",
    "ignore:The '.*_dataloader' does not have many workers",
    "ignore:.*is smaller than the logging interval",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:Be aware that when using `ckpt_path`, callbacks used to create",
    "ignore:Your `(val|predict)_dataloader`'s sampler has shuffling enabled",
    "ignore:predict returned None",
]
pytestmark = [pytest.mark.filterwarnings(FORKS), *map(pytest.mark.filterwarnings, THEIRS)]

workers = pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["main", "workers", "persistent"],
)


class Model(lightning.LightningModule):
    """Keeps every batch that it is given, under the Trainer's epoch."""

    def __init__(self, hook=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.hook = hook
        self.trained, self.validated, self.predicted = [], [], []
        if hook is not None:
            self.train_dataloader = self.make_loader

    def make_loader(self):
        return self.hook(self.trainer)

    def training_step(self, batch, number):
        self.trained.append((self.current_epoch, batch if isinstance(batch, list) else rows(batch)))
        return (self.weight**2).sum()

    def predict_step(self, batch, number):
        self.predicted += rows(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Validated(Model):
    """Also validates."""

    def validation_step(self, batch, number):
        self.validated.append(rows(batch))


def trainer_of(folder, **options):
    options = {"max_epochs": 3, "enable_checkpointing": False, "devices": 1, **options}
    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def at_processed_epoch(trainer, path, **options):
    """The recipe: a loader made in the hook, which begins where the Trainer is."""
    done = trainer.fit_loop.epoch_progress.current.processed
    return loader_of(path, start_epoch=done, **options)


def stateful(path, sampler=None, **options):
    """A loader that resumes in mid-epoch."""
    return StatefulDataLoader(
        ReuseDataset(build, SIZE, path, POLICY, finish=finish),
        batch_size=BATCH,
        sampler=sampler or ReuseSampler(SIZE, POLICY),
        **options,
    )


def fit(folder, loader, ckpt_path=None, **options):
    """What a Trainer is given, by a loader made outside of the hook or by a function inside it."""
    model = Model(loader if callable(loader) else None)
    trainer = trainer_of(folder, **options)
    trainer.fit(model, None if callable(loader) else loader, ckpt_path=ckpt_path)
    return model.trained


def saving(folder, **options):
    """Options of a Trainer that keeps all its checkpoints."""
    checkpoint = ModelCheckpoint(folder / "saved", "{epoch}-{step}", save_top_k=-1, **options)
    return {"enable_checkpointing": True, "callbacks": [checkpoint]}


def epochs(*numbers, limit=None):
    """What `fit` is to return for these epochs."""
    return [(epoch, batch) for epoch in numbers for batch in batches(epoch)[:limit]]


@workers
@pytest.mark.parametrize("place", ["hook", "outside"])
def test_fit(place, options, store, tmp_path):
    """Each epoch of the Trainer is that epoch of the loader, in the closed-form order."""
    if place == "hook":
        loader = partial(at_processed_epoch, path=store, **options)
    else:
        loader = loader_of(store, **options)
    assert fit(tmp_path, loader) == epochs(0, 1, 2)


@workers
@pytest.mark.parametrize("limit", [None, 2])
def test_resume_at_an_epochs_end(limit, options, store, tmp_path):
    """With the epoch that the hook reads off the Trainer, the resumed run equals the whole one."""
    loader = partial(at_processed_epoch, path=store, **options)
    limits = {"limit_train_batches": limit}
    assert fit(tmp_path, loader, **limits, **saving(tmp_path)) == epochs(0, 1, 2, limit=limit)
    for epoch, step in enumerate([limit or STEPS, 2 * (limit or STEPS)]):
        saved = tmp_path / "saved" / f"epoch={epoch}-step={step}.ckpt"
        trained = fit(tmp_path, loader, saved, max_epochs=4, **limits)
        assert trained == epochs(*range(epoch + 1, 4), limit=limit)
        (state,) = torch.load(saved, weights_only=False)["loops"]["fit_loop"]["state_dict"][
            "combined_loader"
        ]
        assert state["epoch"] in (epoch, epoch + 1)


def test_resume_without_the_epoch_is_told(store, tmp_path):
    """Lightning begins the first resumed pass before it says which epoch it is: a warning."""
    fit(tmp_path, loader_of(store), **saving(tmp_path))
    saved = tmp_path / "saved" / f"epoch=2-step={3 * STEPS}.ckpt"
    loader = loader_of(store)
    with pytest.warns(ReuseWarning, match="epoch 3 was set after iter"):
        trained = fit(tmp_path, loader, saved, max_epochs=6)
    assert [batch for _, batch in trained[:STEPS]] == batches(0)
    assert trained[STEPS:] == epochs(4, 5)
    with pytest.warns(ReuseWarning, match="epoch 0 was set after iter"):
        trained = fit(tmp_path, loader_of(store, start_epoch=37))
    assert [batch for _, batch in trained[:STEPS]] == batches(37)
    assert trained[STEPS:] == epochs(1, 2)


@workers
def test_resume_in_mid_epoch(options, store, tmp_path):
    """StatefulDataLoader goes on with the next batch; ReuseDataLoader with the epoch's first."""
    for kind, first in ((stateful, 2), (loader_of, 0)):
        folder = tmp_path / kind.__name__
        saves = saving(folder, every_n_train_steps=STEPS + 2)
        trained = fit(folder, kind(store, **options), **saves)
        assert trained == epochs(0, 1, 2)
        saved = folder / "saved" / f"epoch=1-step={STEPS + 2}.ckpt"
        trained = fit(folder, kind(store, **options), saved)
        assert trained == epochs(1)[first : first + STEPS - 2] + epochs(2)


@pytest.mark.parametrize("start", [True, False])
def test_reload_every_epoch(start, store, tmp_path):
    """A new loader for each epoch gives what one loader gives, with start_epoch and without."""
    made = []

    def hook(trainer):
        made.append(trainer.current_epoch)
        return loader_of(store, start_epoch=trainer.current_epoch if start else 0)

    trained = fit(tmp_path, hook, reload_dataloaders_every_n_epochs=1)
    assert trained == epochs(0, 1, 2)
    assert made == [0, 1, 2]


def test_validation_and_its_sanity_check(tmp_path):
    """Each validation is the epoch of the training; the sanity check takes from epoch 0."""
    model = Validated()
    trainer = trainer_of(tmp_path, num_sanity_val_steps=2)
    trainer.fit(model, loader_of(tmp_path / "train"), loader_of(tmp_path / "val"))
    assert model.trained == epochs(0, 1, 2)
    validated = batches(0)[:2] + [batch for epoch in range(3) for batch in batches(epoch)]
    assert model.validated == validated
    trainer.validate(model, loader_of(tmp_path / "val", start_epoch=7), verbose=False)
    assert all(r == row(*r[:2]) for batch in model.validated for r in batch)


def test_combined_loaders(tmp_path):
    """Two loaders side by side: each in the Trainer's epoch."""
    loaders = [loader_of(tmp_path / name) for name in ("one", "two")]

    class Pairs(Model):
        def training_step(self, batch, number):
            return super().training_step([rows(part) for part in batch["data"]], number)

    model = Pairs()
    both = CombinedLoader({"data": loaders}, "min_size")
    trainer_of(tmp_path).fit(model, both)
    assert model.trained == [(epoch, [batch, batch]) for epoch, batch in epochs(0, 1, 2)]


@pytest.mark.parametrize("place", ["hook", "outside"])
def test_predict(place, store, tmp_path):
    """For predict the loader is made anew even on one device; its epoch is the Trainer's."""
    loader = loader_of(store, start_epoch=4, drop_last=place == "outside")
    model = Model()
    if place == "hook":
        model.predict_dataloader = lambda: loader_of(store, rank=0, world_size=1)
    trainer = trainer_of(tmp_path)
    for epoch in (0, 3):
        model.predicted = []
        trainer.predict(model, None if place == "hook" else loader)
        assert model.predicted == order(epoch)
        assert place == "hook" or loader.next_epoch == epoch + 1
        trainer.fit(model, loader_of(store))


def test_learning_rate_finder(store, tmp_path):
    """It runs through the loader before training; the Trainer's epochs are right all the same."""
    model = Model()
    model.lr = 0.1
    loader = loader_of(store)
    trainer = trainer_of(tmp_path)
    Tuner(trainer).lr_find(model, loader, num_training=7, update_attr=False)
    model.trained.clear()
    loader.set_epoch(0)
    trainer.fit(model, loader)
    assert model.trained == epochs(0, 1, 2)


def test_batch_size_finder(store, tmp_path):
    """It makes a loader for each try; the training that follows begins with epoch 0."""

    def hook(trainer):
        return loader_of(store, batch_size=model.batch_size)

    model = Model(hook)
    model.batch_size = 2
    trainer = trainer_of(tmp_path)
    Tuner(trainer).scale_batch_size(model, max_trials=2, steps_per_trial=1)
    assert model.batch_size == BATCH
    model.trained.clear()
    trainer.fit(model)
    assert model.trained == epochs(0, 1, 2)


# --- two processes --------------------------------------------------------------------------------


def sharded(trainer, path):
    return loader_of(path, rank=trainer.global_rank, world_size=trainer.world_size)


def sharded_stateful(trainer, path):
    """The recipe for several ranks: exact in mid-epoch too."""
    sampler = ReuseSampler(
        SIZE,
        POLICY,
        start_epoch=trainer.fit_loop.epoch_progress.current.processed,
        rank=trainer.global_rank,
        world_size=trainer.world_size,
    )
    return stateful(path, sampler)


def plain(trainer, path):
    return loader_of(path)


def ddp(folder, loader, **options):
    options = {"strategy": "ddp", "devices": 2, **options}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")  # Lightning has much to say of a run as small as this
        warnings.simplefilter("always", ReuseWarning)
        trained = fit(folder, loader, **options)
    return [trained, [str(record.message) for record in caught]]


def run_rank(folder):
    """All that one rank draws, in several runs of one process."""
    store, found = f"{folder}/store", {}
    found["outside"] = ddp(folder, loader_of(store, num_workers=1))
    found["hook"] = ddp(folder, partial(plain, path=store))
    found["saved"] = ddp(folder, partial(at_processed_epoch, path=store), **saving(Path(folder)))
    for name, loader in (
        ("resumed", partial(at_processed_epoch, path=store)),
        ("resumed outside", loader_of(store, start_epoch=2)),
    ):
        saved = f"{folder}/saved/epoch=1-step=6.ckpt"
        found[name] = ddp(folder, loader, ckpt_path=saved, max_epochs=4)
    ours = {"use_distributed_sampler": False}
    found["sharded"] = ddp(folder, partial(sharded, path=store), **ours)
    loader = partial(sharded_stateful, path=store)
    saves = saving(Path(folder), every_n_train_steps=4)
    found["sharded stateful"] = ddp(folder, loader, **ours, **saves)
    saved = f"{folder}/saved/epoch=1-step=4.ckpt"
    found["sharded stateful resumed"] = ddp(folder, loader, **ours, ckpt_path=saved)
    model = Model()
    trainer_of(folder, strategy="ddp", devices=2).predict(model, loader_of(store, start_epoch=6))
    found["predicted"] = model.predicted
    model = Model()
    model.predict_dataloader = lambda: sharded(trainer, store)
    trainer = trainer_of(folder, strategy="ddp", devices=2, **ours)
    trainer.predict(model)
    found["predicted by ours"] = model.predicted
    try:
        ddp(folder, partial(sharded, path=store))
    except ValueError as error:
        found["sharded twice"] = str(error)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two ranks of a group found in `run_rank`."""
    return run_two("test_frameworks_lightning", tmp_path_factory.mktemp("ranks"))


def shares(epoch):
    """What each rank gets of Lightning's sampler, which shuffles the loader's order once more."""
    samples = order(epoch)
    for rank in (0, 1):
        sampler = DistributedSampler(range(SIZE), 2, rank)
        sampler.set_epoch(epoch)
        yield [list(samples[position]) for position in sampler]


def drawn(found):
    """The samples of each epoch that one rank drew, in their order."""
    trained, caught = found
    assert caught == []
    samples = {}
    for epoch, batch in trained:
        samples.setdefault(epoch, []).extend(batch)
    return samples


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("outside", (0, 1, 2)),
        ("hook", (0, 1, 2)),
        ("saved", (0, 1, 2)),
        ("resumed", (2, 3)),
        ("resumed outside", (2, 3)),
    ],
)
def test_two_ranks(name, numbers, ranks):
    """Lightning shards, with a sampler around ours: the closed-form order, dealt by its sampler."""
    for rank, found in enumerate(ranks):
        assert drawn(found[name]) == {epoch: list(shares(epoch))[rank] for epoch in numbers}


def test_two_ranks_that_shard_themselves(ranks):
    """With use_distributed_sampler=False the loader's own sharding is left alone, and resumes."""
    for rank, found in enumerate(ranks):
        sampler = ReuseSampler(SIZE, POLICY, rank=rank, world_size=2)
        wanted = {epoch: [list(row(*pair)) for pair in sampler] for epoch in range(3)}
        assert drawn(found["sharded"]) == drawn(found["sharded stateful"]) == wanted
        rest = {1: wanted[1][BATCH:], 2: wanted[2]}
        assert drawn(found["sharded stateful resumed"]) == rest
        assert "Trainer(use_distributed_sampler=False)" in found["sharded twice"]


def test_two_ranks_predict(ranks):
    """Every sample of the epoch once."""
    for rank, found in enumerate(ranks):
        assert found["predicted"] == [list(sample) for sample in order(6)[rank::2]]
        sampler = ReuseSampler(SIZE, POLICY, rank=rank, world_size=2)
        assert found["predicted by ours"] == [list(row(*pair)) for pair in sampler]
