"""Write golden.json beside this file: values that no later version may change.

Run `python tests/data/make_golden.py`. What it writes depends on nothing but the library.
"""

import json
from itertools import product
from pathlib import Path

from reuseloader.mix import mix
from reuseloader.policy import ReusePolicy

SEEDS = [0, 1, -1, 42, 2**63, 2**64, -(10**30)]
MIXED = [
    (),
    *((value,) for value in (0, 1, 2, -1, -2, 42, 2**32, 2**63, -(2**63), 2**64 - 1, 2**64)),
    *((value,) for value in (-(2**64), 2**127, 2**128, 10**30, -(10**30), 10**100, -(10**100))),
    (0, 0),
    (0, 0, 0),
    (1, 2, 3),
    (3, 2, 1),
    (-1, -2, -3),
    (2**64, -(2**64), 0, 2**200),
    tuple(range(10)),
]
SIZES = [1, 2, 3, 5, 16, 17, 100, 65537, 10**12]
LIFETIMES = [1, 2, 3, 4, 7, 16, 17, 1000]


def positions(size: int) -> list[int]:
    """All positions of a small size; of a large one, 12 spread over it and its last ones."""
    if size <= 17:
        return list(range(size))
    return [0, 1, 2, *(size * k // 10 for k in range(1, 10)), *range(size - 5, size)]


def golden() -> dict[str, list[dict[str, object]]]:
    """The arguments and results of `mix`, `ReusePolicy.key` and `ReusePolicy.order`."""
    keys = [
        {
            "seed": seed,
            "lifetime": lifetime,
            "key": (key := ReusePolicy(lifetime, seed).key(index, epoch))._asdict(),
            "use_seed": key.use_seed,
        }
        for lifetime, seed in product((1, 2, 3, 8, 10**9, 2**63 - 1), SEEDS)
        for index, epoch in ((0, 0), (1, 0), (0, 1), (5, 7), (123456, 99), (2**63 - 1, 2**40))
    ]
    return {
        "mix": [{"values": values, "hash": mix(*values)} for values in MIXED],
        "key": keys,
        "order": [
            {
                "seed": seed,
                "lifetime": lifetime,
                "balanced": balanced,
                "epoch": epoch,
                "size": size,
                "positions": positions(size),
                "indices": [policy.order(p, epoch, size) for p in positions(size)],
            }
            for size, lifetime, balanced in product(SIZES, LIFETIMES, (True, False))
            if balanced or lifetime == 2  # the plain order does not depend on the lifetime
            for seed, epoch in ((0, 0), (0, 1), (-1, 7), (2**64, 10**6))
            for policy in [ReusePolicy(lifetime, seed, balanced=balanced)]
        ],
    }


if __name__ == "__main__":
    lines = [
        f'"{name}": [\n' + ",\n".join(json.dumps(case) for case in cases) + "\n]"
        for name, cases in golden().items()
    ]
    path = Path(__file__).with_name("golden.json")
    path.write_text("{" + ",\n".join(lines) + "}\n")
    print(f"wrote {path}")
