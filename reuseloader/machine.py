"""What this machine leaves to this process."""

import os
from math import ceil
from pathlib import Path

from reuseloader.validate import int_at_least

_CGROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Processors that the affinity of this process and the quota of its container leave to it."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    allowed = quota(_own_group())
    return cores if allowed is None else max(1, min(cores, ceil(allowed)))


def ranks_here(ranks_per_machine: int | None) -> int:
    """How many ranks share this machine: as given, or as torchrun says, or 1."""
    if ranks_per_machine is not None:
        return int_at_least(1, "ranks_per_machine", ranks_per_machine)
    told = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(told)) if told.isdecimal() else 1


def memory() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def quota(group: Path, root: Path = _CGROUPS) -> float | None:
    """Processors' worth of time that a control group (v2) and those above it allow."""
    quotas = []
    for folder in (group, *group.parents):
        if not folder.is_relative_to(root):
            break
        try:
            allowed, period = (folder / "cpu.max").read_text().split()
            quotas.append(int(allowed) / int(period))
        except (OSError, ValueError):  # no such file; "max"
            continue
    return min(quotas, default=None)


def _own_group() -> Path:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return _CGROUPS
    return _CGROUPS.joinpath(*(line[4:] for line in lines if line.startswith("0::/")))
