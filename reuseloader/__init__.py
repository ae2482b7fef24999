"""Use each prepared training sample for several epochs, by a rule in closed form.

`reuseloader.nodes` has the nodes for torchdata.nodes pipelines; here is what both worlds share and
the side of `torch.utils.data.DataLoader`.
"""

from reuseloader.advising import advise
from reuseloader.dataset import ReuseDataset
from reuseloader.errors import ImpureBuildError, ReuseError, ReuseWarning, StateMismatchError
from reuseloader.fingerprint import fingerprint_of
from reuseloader.from_dataset import FromDataset
from reuseloader.key import ReuseKey
from reuseloader.lmdb_store import LMDBStore
from reuseloader.loader import ReuseDataLoader
from reuseloader.order import IndexEpoch
from reuseloader.policy import ReusePolicy
from reuseloader.purity import check_build
from reuseloader.sampler import ReuseSampler

__all__ = [
    "FromDataset",
    "ImpureBuildError",
    "IndexEpoch",
    "LMDBStore",
    "ReuseDataLoader",
    "ReuseDataset",
    "ReuseError",
    "ReuseKey",
    "ReusePolicy",
    "ReuseSampler",
    "ReuseWarning",
    "StateMismatchError",
    "advise",
    "check_build",
    "fingerprint_of",
]
