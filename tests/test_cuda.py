"""What needs a GPU: pinned memory, copies that do not block, training, workers beside CUDA."""

import pytest
import torch
from frameworks_helpers import BATCH, POLICY, SIZE, batches, build, finish, loader_of, rows
from helpers import FORKS, fails
from torch.utils.data import default_collate
from torchdata.nodes import Batcher, Loader, Mapper, PinMemory, Prefetcher

from reuseloader import ReuseDataLoader, nodes

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings(FORKS),
]

workers = pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2, "multiprocessing_context": "fork"},
        {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True},
    ],
    ids=["main", "fork", "persistent forkserver"],
)


@pytest.fixture(autouse=True)
def _cuda_is_up():
    """CUDA is initialised before any worker starts, as in a training script."""
    torch.zeros(1, device="cuda")


def on_cuda(key):
    return {"image": torch.ones(2, device="cuda"), "index": key.index}


def graph_of(path, **options):
    node = nodes.ReuseSampler(SIZE, POLICY)
    node = nodes.ReuseMapper(node, build, path, POLICY, finish=finish, **options)
    node = Mapper(Batcher(node, BATCH, drop_last=False), default_collate)
    return Loader(Prefetcher(PinMemory(node), prefetch_factor=2))


def assert_pinned_and_right(loader):
    for epoch in range(4):
        seen = []
        for batch in loader:
            assert batch.is_pinned()
            copy = batch.to("cuda", non_blocking=True)
            torch.cuda.synchronize()
            seen.append(rows(copy))
        assert seen == batches(epoch)


@workers
def test_pin_memory_of_the_loader(options, store):
    """Batches are pinned, and copies that do not block carry the right samples."""
    with loader_of(store, pin_memory=True, **options) as loader:
        assert_pinned_and_right(loader)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "method": "process", "multiprocessing_context": "fork"},
        {"num_workers": 2, "method": "process", "multiprocessing_context": "forkserver"},
    ],
    ids=["main", "threads", "fork", "forkserver"],
)
def test_pin_memory_in_the_graph(options, store):
    """The same from a graph that ends in PinMemory."""
    assert_pinned_and_right(graph_of(store, **options))


@workers
def test_a_build_on_the_gpu_is_refused(options, store):
    """A CUDA tensor anywhere in a sample is a TypeError that names the place, at every build."""
    if options.get("num_workers"):  # where CUDA cannot be used after a fork
        options = {**options, "multiprocessing_context": "spawn"}
    with ReuseDataLoader(on_cuda, 4, store, lifetime=3, **options) as loader:
        for _ in range(2):
            with fails(TypeError, match=r"sample\['image'\] is on device 'cuda:0'"):
                list(loader)


def sum_on_cuda(key):
    return torch.tensor(key.index, device="cuda").item()


def test_cuda_in_a_forked_worker_is_torchs_own_error(store):
    """A build that uses CUDA in a forked worker fails with what torch says of it, and no hang."""
    options = {"num_workers": 1, "multiprocessing_context": "fork"}
    with (
        ReuseDataLoader(sum_on_cuda, 4, store, lifetime=3, **options) as loader,
        fails(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"),
    ):
        list(loader)


@pytest.mark.parametrize("source", [loader_of, graph_of])
def test_training_on_the_gpu(source, store):
    """Steps on copies that do not block give bit for bit what steps on plain copies give."""
    options = {"pin_memory": True} if source is loader_of else {}

    def train(path, non_blocking):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        loader = source(path, **options)
        for _ in range(3):
            for batch in loader:
                pairs = batch.to("cuda", non_blocking=non_blocking)[:, :2].float()
                loss = (model(pairs).squeeze(1) - pairs.sum(1)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return torch.cat([p.detach().flatten().cpu() for p in model.parameters()])

    plain = train(store, non_blocking=False)
    assert torch.equal(train(store, non_blocking=True), plain)
    assert plain.isfinite().all()
