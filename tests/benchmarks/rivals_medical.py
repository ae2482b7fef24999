"""The caches and queues of MONAI and TorchIO, as `rivals.py` has the others."""

import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rivals import Batches, Built, Rival


class Persistent(Rival):
    name = "MONAI PersistentDataset"
    package = "monai"
    lacks = "never refreshes, only later transforms are random; no resume; restricted types"
    keeps = True

    def __init__(self, path: Path, args: Any) -> None:
        self.path, self.args = path, args
        self.items = [{"index": index} for index in range(args.samples)]
        data = import_module("monai.data")
        self.dataset = data.PersistentDataset(self.items, monai_transform(args), path)
        self.loader = self.loader_of(self.dataset)

    def epoch(self, epoch: int) -> Batches:
        for index in self.due(epoch):
            name = self.dataset.hash_func(self.items[index]).decode()
            (self.path / f"{name}.pt").unlink(missing_ok=True)
        return ((batch["image"], batch["label"]) for batch in self.loader)


class SmartCache(Rival):
    name = "MONAI SmartCacheDataset"
    package = "monai"
    lacks = "all of an epoch in RAM; an epoch is not every index once; threads only; no resume"
    keeps = True

    def __init__(self, path: Path, args: Any) -> None:
        self.args = args
        items = [{"index": index} for index in range(2 * args.samples)]
        self.dataset = import_module("monai.data").SmartCacheDataset(
            items,
            monai_transform(args),
            replace_rate=1 / args.lifetime,
            cache_num=args.samples,
            num_init_workers=2,
            num_replace_workers=2,
            progress=False,
            copy_cache=False,
        )
        self.dataset.start()
        self.settle()
        self.loader = self.loader_of(self.dataset, workers=0)  # it lies in this process's memory

    def settle(self) -> None:
        """Let the replacements get ready now, not at the expense of whoever is measured next."""
        while not self.dataset._replace_done:
            time.sleep(0.001)

    def epoch(self, epoch: int) -> Batches:
        self.dataset.update_cache()
        yield from ((batch["image"], batch["label"]) for batch in self.loader)
        self.settle()

    def close(self) -> None:
        self.dataset.shutdown()


class Queue(Rival):
    name = "TorchIO Queue"
    package = "torchio"
    lacks = "all uses of a sample follow within one queue, in one epoch; in RAM; no resume"
    keeps = True

    class Chunk:
        """The subjects of an epoch: the next 1/L of all."""

        def __init__(self, args: Any) -> None:
            self.indices = range(args.samples)

        def __len__(self) -> int:
            return len(self.indices)

        def __iter__(self) -> Iterator[int]:
            return iter(self.indices)

    def __init__(self, path: Path, args: Any) -> None:
        self.args = args
        tio = import_module("torchio")
        built, length = Built(args), max(1, args.size // 4)

        def subject(index: int, image: torch.Tensor) -> Any:
            return tio.Subject(image=tio.ScalarImage(tensor=image), label=index)

        def transform(before: Any) -> Any:
            tensor, label = built[before["label"]]
            return subject(label, tensor.reshape(1, -1, 1, 1))

        empty = torch.zeros(1, 1, 1, 1)
        subjects = [subject(index, empty) for index in range(args.samples)]
        self.chunk = self.Chunk(args)
        queue = tio.Queue(
            tio.SubjectsDataset(subjects, transform=transform),
            max_length=max(args.lifetime, min(64, args.samples)),
            samples_per_volume=args.lifetime,
            sampler=tio.UniformSampler((length, 1, 1)),
            subject_sampler=self.chunk,
            shuffle_subjects=False,
            num_workers=2,
            start_background=False,
        )
        self.chunk.indices = self.due(0)
        self.loader = tio.SubjectsLoader(queue, batch_size=args.batch)

    def epoch(self, epoch: int) -> Batches:
        self.chunk.indices = self.due(epoch)
        for batch in self.loader:
            yield batch["image"]["data"].flatten(1), torch.as_tensor(batch["label"])


def monai_transform(args: Any) -> Any:
    """The build as a deterministic transform of MONAI."""
    base = import_module("monai.transforms").Transform

    class Transform(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.built = Built(args)

        def __call__(self, item: dict[str, int]) -> dict[str, Any]:
            tensor, label = self.built[item["index"]]
            return {"image": tensor, "label": label}

    return Transform()
