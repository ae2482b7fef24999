"""PyTorch Ignite, the real one: what its Engine draws from our loaders, epoch by epoch."""

import pytest
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
)
from helpers import FORKS
from torch.utils.data import default_collate
from torchdata.nodes import Batcher, Loader, Mapper, Prefetcher
from torchdata.stateful_dataloader import StatefulDataLoader

from reuseloader import ReuseDataset, ReuseSampler, nodes

pytest.importorskip("ignite", reason="needs the extra 'frameworks'")

from ignite.engine import Engine, Events

pytestmark = [
    pytest.mark.filterwarnings(FORKS),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata's own
]

workers = pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["main", "workers", "persistent"],
)


def engine_of(loader=None, state=None):
    """An engine that keeps its batches; with a loader, by the recipe: the epoch is the engine's."""
    engine = Engine(lambda engine, batch: engine.seen.append(rows(batch)))
    engine.seen = []
    if loader is not None:
        engine.add_event_handler(
            Events.EPOCH_STARTED, lambda: loader.set_epoch(engine.state.epoch - 1)
        )
    if state is not None:
        engine.load_state_dict(state)
    return engine


def graph_of(path, start_epoch=0, **options):
    """The same samples from a torchdata.nodes graph."""
    node = nodes.ReuseSampler(SIZE, POLICY, start_epoch=start_epoch)
    node = nodes.ReuseMapper(node, build, path, POLICY, finish=finish, **options)
    node = Mapper(Batcher(node, BATCH, drop_last=False), default_collate)
    return Loader(Prefetcher(node, prefetch_factor=2))


def epochs(*numbers):
    return [batch for epoch in numbers for batch in batches(epoch)]


@workers
@pytest.mark.parametrize("recipe", [False, True])
def test_run(recipe, options, store):
    """Each epoch of the engine is the next epoch of the loader."""
    with loader_of(store, **options) as loader:
        engine = engine_of(loader if recipe else None)
        engine.run(loader, max_epochs=3)
        assert engine.seen == epochs(0, 1, 2)
        assert loader.state_dict() == {"epoch": 3}
        engine.run(loader, max_epochs=5)
        assert engine.seen == epochs(0, 1, 2, 3, 4)


@workers
def test_resume(options, store):
    """With the epoch set at EPOCH_STARTED, the engine's state is all that a resume needs."""
    with loader_of(store, **options) as loader:
        engine = engine_of(loader)
        engine.run(loader, max_epochs=2)
        state = {**engine.state_dict(), "max_epochs": 4}
    with loader_of(store, **options) as loader:
        engine = engine_of(loader, state)
        engine.run(loader)
        assert engine.seen == epochs(2, 3)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=["main", "workers"])
@pytest.mark.parametrize("stop", range(1, STEPS))
def test_resume_in_mid_epoch(stop, options, store):
    """StatefulDataLoader goes on with the next batch; ReuseDataLoader with its epoch's first.

    Then Ignite's epochs and the loader's no longer end together.
    """

    def stateful():
        dataset = ReuseDataset(build, SIZE, store, POLICY, finish=finish)
        sampler = ReuseSampler(SIZE, POLICY)
        return StatefulDataLoader(dataset, BATCH, sampler=sampler, **options)

    loader, states = stateful(), {}
    engine = engine_of()

    @engine.on(Events.ITERATION_COMPLETED(once=STEPS + stop))
    def save():
        states.update(loader=loader.state_dict(), engine=engine.state_dict())

    engine.run(loader, max_epochs=3)
    assert engine.seen == epochs(0, 1, 2)
    loader._iterator = None  # collected as garbage, it would wait 5 seconds for its workers

    loader = stateful()
    loader.load_state_dict(states["loader"])
    engine = engine_of(state=states["engine"])
    engine.run(loader)
    loader._iterator = None
    assert engine.seen == epochs(1, 2)[stop:]

    with loader_of(store, **options) as loader:
        engine = engine_of(loader, states["engine"])
        engine.run(loader)
        assert engine.seen == epochs(1, 2)[: 2 * STEPS - stop]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=["main", "workers"])
@pytest.mark.parametrize("epoch_length", [None, STEPS])
def test_nodes(epoch_length, options, store):
    """A graph without a length gives each epoch of the engine whole."""
    engine = engine_of()
    engine.run(graph_of(store, **options), max_epochs=3, epoch_length=epoch_length)
    assert engine.seen == epochs(0, 1, 2)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=["main", "workers"])
@pytest.mark.parametrize("stop", range(1, 2 * STEPS))
def test_nodes_resume(stop, options, store):
    """The state of the graph and that of the engine go on with the next batch, at every place."""
    loader, states = graph_of(store, **options), {}
    engine = engine_of()

    @engine.on(Events.ITERATION_COMPLETED(once=stop))
    def save():
        states.update(loader=loader.state_dict(), engine=engine.state_dict())

    engine.run(loader, max_epochs=3, epoch_length=STEPS)
    loader = graph_of(store, **options)
    loader.load_state_dict(states["loader"])
    engine = engine_of(state=states["engine"])
    engine.run(loader)
    assert engine.seen == epochs(0, 1, 2)[stop:]
