"""What a shuffled order costs, per index of a whole pass over n indices.

- beside torch's RandomSampler, which makes the permutation of a pass in one list: targets from
  10**6 indices on, since a list of fewer fits the processor's caches;
- beside grain's `index_shuffle`, like ours a permutation in closed form: a C++ function of one
  index, called from Python as grain's own MapDataset.shuffle does; it has no vectorised form. Its
  keys are 32 bits and its order is not balanced. `policy.order` is called with blocks of positions,
  as the samplers here do; for one position at a time see its row without a target.
"""

from collections import deque
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from itertools import count
from typing import Any

import numpy as np
from bench import Beside, Case, arguments, machine, measure, report
from torch.utils.data import RandomSampler
from torchdata.nodes import SamplerWrapper
from work import require

from reuseloader import ReusePolicy, ReuseSampler, nodes

BLOCK = 8192
RANDOM_SAMPLER = "torch RandomSampler"
SAMPLER_NODE = "SamplerWrapper(RandomSampler)"
INDEX_SHUFFLE = "grain index_shuffle"

epochs = count()  # every run is a new epoch: nothing is reused from the run before


def consume(values: Iterable[object]) -> None:
    deque(values, maxlen=0)


def random_sampler(n: int) -> None:
    consume(RandomSampler(range(n)))


def order(policy: ReusePolicy, n: int) -> None:
    epoch = next(epochs)
    for start in range(0, n, BLOCK):
        consume(policy.order(np.arange(start, min(start + BLOCK, n)), epoch, n).tolist())


def order_singly(policy: ReusePolicy, n: int) -> None:
    epoch = next(epochs)
    for position in range(n):
        policy.order(position, epoch, n)


def sampler_node(n: int) -> None:
    consume(SamplerWrapper(RandomSampler(range(n))))


def grain_shuffle(n: int) -> None:
    from grain.experimental import index_shuffle

    seed, last = next(epochs) % 2**32, n - 1
    for position in range(n):
        index_shuffle(position, max_index=last, seed=seed, rounds=4)


def cases(n: int) -> dict[str, Case]:
    policies = [
        ReusePolicy(k, balanced=balanced) for balanced in (True, False) for k in (1, 2, 4, 8)
    ]
    found = {RANDOM_SAMPLER: Case(partial(random_sampler, n), per=n)}
    many = n >= 10**6
    rivals = [Beside(RANDOM_SAMPLER, target=1.0 if many else None)]
    if find_spec("grain") is not None:
        rivals.append(Beside(INDEX_SHUFFLE, target=1.0))
        found[INDEX_SHUFFLE] = Case(partial(grain_shuffle, n), per=n)
    for policy in policies:
        name = f"policy.order L={policy.lifetime} {'balanced' if policy.balanced else 'plain'}"
        found[name] = Case(partial(order, policy, n), rivals, n)
    policy = ReusePolicy(4)
    few = min(n, 1000)  # it is slow
    singly = [Beside(*rival.cases) for rival in rivals]
    found["policy.order L=4, singly"] = Case(partial(order_singly, policy, few), singly, few)
    sampler, node = ReuseSampler(n, policy), nodes.ReuseSampler(n, policy)
    found["ReuseSampler"] = Case(
        lambda: consume(sampler), [Beside(RANDOM_SAMPLER, target=2.5 if many else None)], n
    )
    found[SAMPLER_NODE] = Case(partial(sampler_node, n), per=n)
    found["nodes.ReuseSampler"] = Case(
        lambda: (node.reset(), consume(node)),
        [Beside(SAMPLER_NODE, target=2.0 if many else None)],
        n,
    )
    return found


def main(args: Any) -> None:
    print(machine(["grain"]))
    for n in args.n:
        positions = ReusePolicy(4).order(np.arange(min(n, 10**6)), 0, n)
        require(len(np.unique(positions)) == min(n, 10**6), "an index came twice")
        rounds = max(3, min(args.rounds, 3 * 10**7 // n))
        print(f"\nn = {n}, median of {rounds} interleaved rounds, per index\n")
        report(measure(cases(n), rounds), args.json)


if __name__ == "__main__":
    main(arguments(__doc__, n=(10**4, 10**5, 10**6, 10**7), rounds=9))
