"""The Trainer of Hugging Face transformers, the real one: what it draws, epoch by epoch."""

import pytest
import torch
from frameworks_helpers import STEPS, batches, loader_of, rows
from helpers import FORKS

transformers = pytest.importorskip("transformers", reason="needs the extra 'frameworks'")
pytest.importorskip("accelerate", reason="needs the extra 'frameworks'")

pytestmark = [pytest.mark.filterwarnings(FORKS)]

workers = pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["main", "workers", "persistent"],
)


class Model(torch.nn.Module):
    """Keeps every batch that it is given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def forward(self, samples):
        self.seen.append(rows(samples))
        return {"loss": (self.weight**2).sum()}


def named(samples):
    return {"samples": torch.stack(samples)}


class Prepared(transformers.Trainer):
    """The recipe: `Trainer` with a loader of its own, prepared as Trainer prepares its own."""

    def __init__(self, loader, **options):
        super().__init__(**options)
        self.loader = loader

    def get_train_dataloader(self):
        return self.accelerator.prepare(self.loader)


class Bare(Prepared):
    """Without prepare."""

    def get_train_dataloader(self):
        return self.loader


def train(kind, folder, store, resume=None, loader_options=None, **options):
    """What a model is given in three epochs; and the Trainer."""
    options = {"num_train_epochs": 3, "save_strategy": "no", **options}
    arguments = transformers.TrainingArguments(
        str(folder), use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=1, **options
    )
    model = Model()
    loader = loader_of(store, collate_fn=named, **(loader_options or {}))
    trainer = kind(loader, model=model, args=arguments)
    trainer.train(resume_from_checkpoint=resume)
    return model.seen, trainer


def epochs(*numbers):
    return [batch for epoch in numbers for batch in batches(epoch)]


@workers
@pytest.mark.parametrize("kind", [Prepared, Bare])
def test_train(kind, options, store, tmp_path):
    """Each epoch of the Trainer is that epoch of the loader, in the closed-form order."""
    seen, trainer = train(kind, tmp_path, store, loader_options=options)
    assert seen == epochs(0, 1, 2)
    assert trainer.state.global_step == 3 * STEPS


@workers
@pytest.mark.parametrize("step", [STEPS, STEPS + 2, 2 * STEPS - 1])
def test_resume(step, options, store, tmp_path):
    """From a checkpoint at an epoch's end or in its middle, the run goes on with the next batch."""
    saves = {"save_strategy": "steps", "save_steps": 1}
    seen, _ = train(Prepared, tmp_path, store, loader_options=options, **saves)
    assert seen == epochs(0, 1, 2)
    saved = str(tmp_path / f"checkpoint-{step}")
    seen, _ = train(Prepared, tmp_path, store, saved, loader_options=options)
    assert seen == epochs(0, 1, 2)[step:]


def test_resume_of_a_bare_loader(store, tmp_path):
    """Without prepare, the Trainer skips to the right batch, but of the wrong epoch."""
    train(Bare, tmp_path, store, save_strategy="steps", save_steps=1)
    seen, _ = train(Bare, tmp_path, store, str(tmp_path / f"checkpoint-{STEPS}"))
    assert seen == epochs(1, 2)
    seen, _ = train(Bare, tmp_path, store, str(tmp_path / f"checkpoint-{STEPS + 2}"))
    assert seen == batches(0)[2:] + epochs(2)


def test_accumulated_gradients(store, tmp_path):
    """Several batches a step: each epoch is complete all the same."""
    seen, _ = train(Prepared, tmp_path, store, gradient_accumulation_steps=2)
    assert seen == epochs(0, 1, 2)
