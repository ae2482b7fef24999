"""LMDBStore in every pipeline: the stream is that of a directory of files, bit for bit."""

import pytest
from helpers import FORKS, START_METHODS, Caught, Log, bits, flat
from torchdata.nodes import Loader

from reuseloader import LMDBStore, ReuseDataLoader, ReuseDataset, ReusePolicy
from reuseloader.audit import check
from reuseloader.nodes import ReuseMapper, ReuseSampler

pytestmark = pytest.mark.filterwarnings(FORKS)

SIZE = 12
POLICY = ReusePolicy(3, 7)
PASSES = 5


def data_loader(build, path, **options):
    return ReuseDataLoader(
        build,
        SIZE,
        path,
        lifetime=POLICY.lifetime,
        seed=POLICY.seed,
        shuffle=True,
        batch_size=2,
        collate_fn=list,
        **options,
    )


def nodes(build, path, **options):
    mapper = ReuseMapper(ReuseSampler(SIZE, POLICY), build, path, POLICY, size=SIZE, **options)
    return mapper, Loader(mapper)


@pytest.fixture
def reference(tmp_path):
    """The bits of all passes of a directory of files, and what was built in each."""
    log = Log(tmp_path)
    with data_loader(log.build, tmp_path / "directory") as loader:
        return [([bits(sample) for sample in flat(loader)], log.indices()) for _ in range(PASSES)]


WORKERS = [{"num_workers": 0}]
WORKERS += [{"num_workers": 2, "multiprocessing_context": method} for method in START_METHODS]


@pytest.mark.parametrize("workers", WORKERS, ids=lambda w: str(w.get("multiprocessing_context")))
def test_a_data_loader_delivers_the_same(workers, reference, store, log):
    """Without workers, and with those of every start method, samples and builds are the same."""
    workers = {**workers, "persistent_workers": workers["num_workers"] > 0}
    with data_loader(log.build, LMDBStore(store), **workers) as loader:
        got = [([bits(sample) for sample in flat(loader)], log.indices()) for _ in range(PASSES)]
    assert got == reference
    assert check(LMDBStore(store), SIZE).clean


@pytest.mark.parametrize(
    "workers",
    [
        {"num_workers": 0},
        {"num_workers": 2, "method": "thread"},
        {"num_workers": 2, "method": "process", "multiprocessing_context": "fork"},
        {"num_workers": 2, "method": "process", "multiprocessing_context": "spawn"},
    ],
    ids=["inline", "threads", "forked", "spawned"],
)
def test_nodes_deliver_the_same(workers, reference, store, log):
    """Inline, in threads and in processes, samples and builds are the same; also after a close."""
    mapper, loader = nodes(log.build, LMDBStore(store), **workers)
    got = []
    for number in range(PASSES):
        got.append(([bits(sample) for sample in loader], log.indices()))
        if number in (1, PASSES - 1):
            mapper.close()
    assert got == reference
    assert check(LMDBStore(store), SIZE).clean


@pytest.mark.parametrize("position", [0, 1, 5, SIZE - 1])
def test_a_resumed_run_goes_on_as_if_nothing_happened(position, reference, store, log):
    """A state taken at any position gives the rest, and what is stored is not built again."""
    mapper, loader = nodes(log.build, LMDBStore(store))
    list(loader)
    iterator = iter(loader)
    head = [bits(next(iterator)) for _ in range(position)]
    state = loader.state_dict()
    mapper.close()
    mapper, loader = nodes(log.build, LMDBStore(store))
    loader.load_state_dict(state)
    assert head + [bits(sample) for sample in loader] == reference[1][0]
    assert [bits(sample) for sample in loader] == reference[2][0]
    mapper.close()
    built = log.indices()
    assert sorted(built) == sorted(i for epoch in range(3) for i in reference[epoch][1])


def test_another_split_is_warned_of(store, log):
    """The book tells of a start with another size under the same fingerprint."""
    ReuseDataset(log.build, SIZE, LMDBStore(store), POLICY).close()
    with Caught() as caught:
        ReuseDataset(log.build, SIZE + 1, LMDBStore(store), POLICY).close()
    assert len(caught) == 1
    assert f"{store} was last used for 12 samples" in caught[0]
