"""Memory that the processes of one loader share: a few numbers, no locks, any start method."""

import os
import weakref
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

_MOST = 2**15 - 1  # bytes; torch fills and copies more with threads, and hangs in a forked process


class Holder(Protocol):
    """Something that keeps its numbers in `SharedBytes`."""

    def settle(self) -> None:
        """In a process that was handed the memory and is no worker: have memory of its own."""


_holders: "weakref.WeakSet[Holder]" = weakref.WeakSet()


def settle_before_fork(holder: Holder) -> None:
    """Settle ``holder`` at the latest when its process forks workers, which share from then on."""
    _holders.add(holder)


def _settle_all() -> None:
    for holder in tuple(_holders):
        holder.settle()


os.register_at_fork(before=_settle_all)


class SharedBytes:
    """Zeroed bytes seen by the process that made them and by the workers it starts; 32 KiB at most.

    Workers get the same memory by fork, spawn and forkserver. A copy made in any other way
    (copy, pickle, cloudpickle) is new, zeroed memory of its own, owned by the process that copied.
    """

    def __init__(self, size: int) -> None:
        if size > _MOST:
            raise ValueError(f"size must be at most {_MOST}, got {size}")
        self._share(torch.zeros(size, dtype=torch.uint8))

    def _share(self, memory: torch.Tensor) -> None:
        self._memory = memory.share_memory_()  # type: ignore[no-untyped-call]
        self._owner = os.getpid()

    @property
    def is_owned(self) -> bool:
        """Whether this process made the memory, rather than got it from another one."""
        return os.getpid() == self._owner

    @property
    def is_foreign(self) -> bool:
        """Whether it was made by another process, of which this one is no DataLoader worker."""
        return not self.is_owned and get_worker_info() is None

    def view(self, dtype: str, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """A live array over the bytes from ``start`` to ``stop``."""
        memory: npt.NDArray[np.uint8] = self._memory.numpy()
        return memory[start:stop].view(np.dtype(dtype))

    def __getstate__(self) -> dict[str, Any]:
        return {"memory": self._memory, "owner": self._owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        memory = state["memory"]
        if memory.is_shared():  # handed to a worker
            self._memory, self._owner = memory, state["owner"]
        else:
            self._share(torch.zeros_like(memory))
