"""What a shuffled order costs beside torch's RandomSampler, per pass of n samples.

Run `python tests/benchmarks/order.py [n [rounds]]`.
"""

import sys
from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import count

import numpy as np
from bench import Case, machine, measure, table
from torch.utils.data import RandomSampler
from torchdata.nodes import SamplerWrapper

from reuseloader import ReusePolicy, ReuseSampler, nodes

BLOCK = 8192
RANDOM_SAMPLER = "torch RandomSampler"
SAMPLER_NODE = "SamplerWrapper(RandomSampler)"

epochs = count()  # every run is a new epoch: nothing is reused from the run before


def consume(values: Iterable[object]) -> None:
    deque(values, maxlen=0)


def random_sampler(n: int) -> None:
    consume(RandomSampler(range(n)))


def order(policy: ReusePolicy, n: int) -> None:
    epoch = next(epochs)
    for start in range(0, n, BLOCK):
        consume(policy.order(np.arange(start, min(start + BLOCK, n)), epoch, n).tolist())


def sampler_node(n: int) -> None:
    consume(SamplerWrapper(RandomSampler(range(n))))


def cases(n: int) -> dict[str, Case]:
    policies = [
        ReusePolicy(k, balanced=balanced) for balanced in (True, False) for k in (1, 2, 4, 8)
    ]
    found = {RANDOM_SAMPLER: Case(partial(random_sampler, n))}
    for policy in policies:
        name = f"L={policy.lifetime} {'balanced' if policy.balanced else 'plain'}"
        found[f"policy.order {name}"] = Case(partial(order, policy, n), RANDOM_SAMPLER, 1.0)
    policy = ReusePolicy(4)
    sampler, node = ReuseSampler(n, policy), nodes.ReuseSampler(n, policy)
    found["ReuseSampler"] = Case(lambda: consume(sampler), RANDOM_SAMPLER, 2.5)
    found[SAMPLER_NODE] = Case(partial(sampler_node, n))
    found["nodes.ReuseSampler"] = Case(lambda: (node.reset(), consume(node)), SAMPLER_NODE, 2.0)
    return found


if __name__ == "__main__":
    n, rounds = (*map(int, sys.argv[1:]), *(10**6, 9)[len(sys.argv) - 1 :])
    print(machine())
    print(f"n = {n}, median of {rounds} interleaved rounds\n")
    print(table(cases(n), measure(cases(n), rounds)))
