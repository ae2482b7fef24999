"""A build function over a dataset that is already there."""

from typing import Any

from torch.utils.data import IterableDataset

from reuseloader.key import ReuseKey


class FromDataset:
    """``build(key)`` that gives ``dataset[key.index]``, with the global random states seeded.

    So a dataset that draws from `random`, NumPy's or torch's global state, as most do, gives the
    same sample in every worker and at every rebuild. Random generators of its own are not seeded.
    It must be built in the main thread of a process, see `ReuseKey.seeded`; for a dataset without
    chance, ``lambda key: dataset[key.index]`` may be built anywhere. Picklable if ``dataset`` is.

    Args:
        dataset: anything map-style: with ``dataset[index]`` for every index of the loader.

    Raises:
        TypeError: ``dataset`` has no items by index.
    """

    def __init__(self, dataset: Any) -> None:
        if isinstance(dataset, IterableDataset):
            raise TypeError(
                f"dataset must be map-style, got the IterableDataset {dataset!r}: a stream has no "
                f"index to reuse samples by"
            )
        if isinstance(dataset, type) or not hasattr(dataset, "__getitem__"):
            raise TypeError(f"dataset must be an object with __getitem__, got {dataset!r}")
        self.dataset = dataset
        # the name that a directory is remembered by: of what is built, not of this wrapper alone
        self.__qualname__ = f"{type(self).__qualname__}({type(dataset).__qualname__})"

    def __call__(self, key: ReuseKey) -> Any:
        """The item of the key's index."""
        with key.seeded():
            return self.dataset[key.index]

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({self.dataset!r})"
