"""What size costs: construction, first item and memory, up to 10**8 samples; a full directory.

Each object is made in a process of its own. Memory is what the peak grew by, from after the imports
to after the first item. The directory holds 10**6 files; a start looks through it once, for what an
earlier run left, and no epoch and no worker may list it again (counted by an audit hook, which
forked workers inherit). Linux alone.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench import Figure, aligned, arguments, duration, machine, report
from torchdata.nodes import Batcher, Loader
from work import TENSORS, Build, amount, folder, kept, require

from reuseloader import ReuseDataLoader, ReusePolicy, ReuseSampler, nodes

POLICY = ReusePolicy(4)
BATCH = 32
START = 2.0  # seconds that a start may take over a full directory


def sampler(size: int, path: Path) -> Iterable[Any]:
    return ReuseSampler(size, POLICY)


def loader(size: int, path: Path) -> Iterable[Any]:
    return ReuseDataLoader(
        Build(100), size, lifetime=4, shuffle=True, batch_size=BATCH, **kept(TENSORS, path)
    )


def graph(size: int, path: Path) -> Iterable[Any]:
    node: Any = nodes.ReuseSampler(size, POLICY)
    node = nodes.ReuseMapper(node, Build(100), policy=POLICY, size=size, **kept(TENSORS, path))
    return Loader(Batcher(node, BATCH))


OBJECTS: dict[str, Callable[[int, Path], Iterable[Any]]] = {
    "ReuseSampler": sampler,
    "ReuseDataLoader": loader,
    "graph": graph,
}


def peak() -> int:
    """The most memory that this process had, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def alone(name: str, size: int) -> None:
    """In a process of its own: print the seconds of construction and first item, and the bytes."""
    with folder() as path:
        before, start = peak(), time.perf_counter()
        made = OBJECTS[name](size, path)
        built = time.perf_counter()
        next(iter(made))
        first = time.perf_counter()
        print(json.dumps([built - start, first - built, peak() - before]))


def sizes(args: Any) -> None:
    table = [("object", "size", "construction", "first item", "memory", "")]
    for name in OBJECTS:
        for size in args.sizes:
            command = [sys.executable, __file__, "--alone", name, "--sizes", str(size)]
            answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300)
            built, first, memory = json.loads(answer.stdout)
            table.append(
                (name, f"{size:.0e}", duration(built), duration(first), amount(memory), "")
            )
    print(aligned(table), flush=True)


def full_directory(args: Any) -> list[Figure]:
    """Starts and epochs over a directory with ``args.files`` files."""
    with folder() as root:
        path, log = root / "samples", root / "listings"
        path.mkdir()
        log.touch()
        for index in range(args.files):
            os.close(os.open(f"{path}/{index:08}.pt", os.O_WRONLY | os.O_CREAT, 0o600))
        few = range(min(args.files, 1000))
        for index in few:
            os.remove(f"{path}/{index:08}.pt")
        count_listings(path, log)

        def start() -> ReuseDataLoader:
            return ReuseDataLoader(
                Build(100),
                args.files,
                lifetime=4,
                sampler=few,
                batch_size=100,
                num_workers=2,
                **kept(TENSORS, path),
            )

        seconds = []
        for _ in range(args.rounds):
            log.write_bytes(b"")
            before = time.perf_counter()
            made = start()
            seconds.append(time.perf_counter() - before)
        listed_at_start = len(log.read_bytes())
        with made as last:
            log.write_bytes(b"")
            for _ in range(3):
                delivered = sum(len(labels) for _, labels in last)
                require(delivered == len(few), f"{delivered} samples in place of {len(few)}")
            listed_later = len(log.read_bytes())
        require(len(list(path.iterdir())) >= args.files, "samples were lost")
    middle = sorted(seconds)[len(seconds) // 2]
    name = f"start over {args.files} files"
    figures = [
        Figure(name, middle, min(seconds), max(seconds), middle / START, 1.0, duration(START))
    ]
    print(
        f"listings of the directory: {listed_at_start} at a start, "
        f"{listed_later} in 3 epochs of 2 new workers each\n"
    )
    require(listed_later == 0, "an epoch or a worker lists the directory")
    return figures


def count_listings(path: Path, log: Path) -> None:
    """From now on, a byte goes to ``log`` whenever this process or one it forks lists ``path``."""
    file, this = os.open(log, os.O_WRONLY | os.O_APPEND), str(path)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        listing = event in ("os.scandir", "os.listdir", "glob.glob")
        if listing and str(args[0]).startswith(this):
            os.write(file, b"x")

    sys.addaudithook(hook)


def main(args: Any) -> None:
    if args.alone:
        alone(args.alone, args.sizes[0])
        return
    print(machine(), "\n")
    sizes(args)
    print()
    report(full_directory(args), args.json)


if __name__ == "__main__":
    main(arguments(__doc__, sizes=(10**4, 10**6, 10**8), files=10**6, rounds=5, alone=""))
