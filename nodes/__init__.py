"""Nodes for torchdata.nodes pipelines: ``ReuseSampler -> ReuseMapper -> Batcher -> Prefetcher``."""

from reuseloader.nodes.mapper import ReuseMapper
from reuseloader.nodes.sampler import ReuseSampler
from reuseloader.nodes.with_epoch import WithEpoch

__all__ = ["ReuseMapper", "ReuseSampler", "WithEpoch"]
