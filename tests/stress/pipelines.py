"""The pipelines that the scripts try, of both kinds."""

from pathlib import Path
from typing import Any

from samples import FORMATS, Build
from torchdata.nodes import Batcher, Loader, Prefetcher

from reuseloader import ReuseDataLoader, ReusePolicy
from reuseloader.nodes import ReuseMapper, ReuseSampler

_FORK = {"num_workers": 2, "prefetch_factor": 8, "multiprocessing_context": "fork"}
PIPELINES: dict[str, dict[str, Any]] = {
    "DataLoader": {},
    "DataLoader, 2 workers": _FORK,
    "DataLoader, 2 persistent workers": {**_FORK, "persistent_workers": True},
    "DataLoader, 2 spawned workers": {
        **_FORK,
        "multiprocessing_context": "spawn",
        "persistent_workers": True,
    },
    "nodes": {},
    "nodes, 2 threads": {"num_workers": 2, "method": "thread"},
    "nodes, 2 processes": {
        "num_workers": 2,
        "method": "process",
        "multiprocessing_context": "fork",
        "max_concurrent": 16,
    },
    "nodes, 2 processes, whole batches": {
        "num_workers": 2,
        "method": "process",
        "multiprocessing_context": "fork",
    },
}


def pipeline(
    name: str,
    build: Build,
    policy: ReusePolicy,
    path: Path | str,
    *,
    size: int,
    batch: int,
    start_epoch: int = 0,
    **options: Any,
) -> tuple[Any, Any]:
    """Return (loader, what to close): shuffled batches, which are lists."""
    options = {**PIPELINES[name], **FORMATS[build.format], **options}
    if name.startswith("DataLoader"):
        loader = ReuseDataLoader(
            build,
            size,
            path,
            lifetime=policy.lifetime,
            seed=policy.seed,
            start_epoch=start_epoch,
            shuffle=True,
            batch_size=batch,
            collate_fn=list,
            **options,
        )
        return loader, loader
    node: Any = ReuseSampler(size, policy, start_epoch=start_epoch)
    whole = "whole batches" in name
    if whole:  # made in one worker, and sent
        node = Batcher(node, batch, drop_last=False)
    node = mapper = ReuseMapper(node, build, path, policy, size=size, **options)
    if not whole:
        node = Batcher(node, batch, drop_last=False)
    return Loader(Prefetcher(node, 4)), mapper
