"""Does a sample depend on its key alone? `check_build` tries what training would bring about."""

from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import BaseContext

from reuseloader.codec import Load, Save
from reuseloader.fetcher import Build, Fetcher, Finish
from reuseloader.fresh_process import fresh_process
from reuseloader.key import ReuseKey
from reuseloader.policy import ReusePolicy
from reuseloader.random_states import restored
from reuseloader.trials import Trials
from reuseloader.validate import instance, int_at_least


def check_build(
    build: Build,
    policy: ReusePolicy,
    *,
    size: int,
    samples: int = 8,
    epochs: int = 2,
    save: Save | None = None,
    load: Load | None = None,
    format: str = "torch",
    finish: Finish | None = None,
    contract: bool = True,
    multiprocessing_context: str | BaseContext | None = None,
) -> None:
    """Raise unless the samples of ``build`` depend on their key alone and survive being stored.

    To be called once before training, with what training is given. Some keys are each built four
    times, in at least a part of a second: one after another; from the last to the first under other
    global random states; in another thread; and later in another process, again from the last to
    the first. Each time the same key must give the same sample, bit for bit (NaN equals NaN), and
    so must ``load`` of what ``save`` wrote. The global random states are given back afterwards.

    Not seen are mistakes of indices that were not tried, the date, what differs between machines,
    what a build learns of its DataLoader worker (``get_worker_info``, which decides no sample), and
    builds that disturb each other while they run at once. A random choice among a few values
    may give the same one by chance.

    Args:
        build: what training will call, as in `ReuseDataset`.
        policy: the rule of reuse that training will have.
        size: the number of samples; those tried are spread over all indices.
        samples: how many keys to try, at least 1. It costs four builds of each, and five more to
            find the cause of a failure.
        epochs: keys are of epochs 0 .. epochs - 1. Give the number of epochs of the training if
            ``build`` looks at ``key.first_epoch``. One index comes in two generations, if epochs
            are enough for that.
        save: as in `ReuseDataset`.
        load: as in `ReuseDataset`.
        format: as in `ReuseDataset`.
        finish: as in `ReuseDataset`; it gets the same trials, at least once for each build.
        contract: whether samples must agree with each other: in the names in mappings, the length
            of tuples, the types of scalars, tensors and arrays, dtypes and numbers of dimensions.
            The extents of dimensions, the length and content of lists (but for the dtypes and
            dimensions of tensors and arrays in them), None in place of something, and other
            objects are free. False for samples that are meant to differ.
        multiprocessing_context: how the other process starts. By default a new interpreter
            (``"spawn"``), which also has other hash seeds; or a fork if ``build`` cannot go there.
            A script that is run needs ``if __name__ == "__main__":``, as for such workers.

    Raises:
        ImpureBuildError: with the index, the place in the sample, both values and the likely cause.
        TypeError, ValueError: an argument is not as described; a tensor is not on the CPU; or
            ``build`` cannot be had in another process.

    What ``build``, ``save``, ``load`` and ``finish`` raise passes through, with a note that names
    the index.
    """
    fetcher = Fetcher(
        build,
        _Nowhere(),
        policy,
        size=size,
        fingerprint="",
        save=save,
        load=load,
        format=format,
        finish=finish,
    )
    instance(bool, "contract", contract)
    keys = keys_to_try(
        policy,
        int_at_least(0, "size", size),
        int_at_least(1, "samples", samples),
        int_at_least(1, "epochs", epochs),
    )
    if not keys:
        return
    # before anything is built here: a fork would have what a build has left behind
    with restored(), fresh_process(fetcher, keys, multiprocessing_context) as process:
        trials = Trials(fetcher, keys)
        trials.build_first()
        if contract:
            trials.require_agreement()
        trials.build_again()
        with ThreadPoolExecutor(1) as executor:
            executor.submit(trials.build_in_thread).result()
        trials.build_in_process(process)


def keys_to_try(policy: ReusePolicy, size: int, samples: int, epochs: int) -> list[ReuseKey]:
    """At most ``samples`` keys, spread over indices and epochs; one index in two generations."""
    pairs: dict[tuple[int, int], None] = {}  # a set in its order
    # the first epoch > 0 that begins a generation, (epoch + index) % lifetime == 0
    epoch = max(1, policy.lifetime - size + 1)
    if epoch < epochs and size:
        index = -epoch % policy.lifetime
        pairs = {(index, 0): None, (index, epoch): None}
    count = min(max(samples - len(pairs), 1), size)
    for number in range(count):
        pairs[number * (size - 1) // max(count - 1, 1), number * epochs // count] = None
    return [policy.key(*pair) for pair in list(pairs)[:samples]]


class _Nowhere:
    """A store of nothing."""

    def read(self, index: int) -> bytes | None:
        return None

    def write(self, index: int, record: bytes) -> None:
        pass

    def close(self) -> None:
        pass
