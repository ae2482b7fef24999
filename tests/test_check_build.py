"""Ten builds and more that depend on more than their key: each is caught, and told why."""

import functools
import importlib
import json
import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import impure
import numpy as np
import pytest
import torch
from helpers import FORKS, append, children

from reuseloader import FromDataset, ImpureBuildError, ReuseError, ReusePolicy, check_build
from reuseloader.purity import keys_to_try

pytestmark = pytest.mark.filterwarnings(FORKS)  # in which the checks that may fork, do

POLICY = ReusePolicy(4, 7)
EXAMPLES = Path(__file__).parents[1] / "examples"


def check(build, *, size=100, samples=4, context="fork", **options):
    check_build(
        build, POLICY, size=size, samples=samples, multiprocessing_context=context, **options
    )


def message(build, **options):
    """What `check` says of an impure build; no process and no thread is left."""
    threads = threading.active_count()
    with pytest.raises(ImpureBuildError) as caught:
        check(build, **options)
    assert not children()
    assert threading.active_count() == threads
    return str(caught.value)


# --- what is caught -------------------------------------------------------------------------------

IMPURE = [
    # build, place, trial, cause
    (impure.global_numpy, "['noise'][0, 0]", "built again", "np.random.default_rng(key.seed)"),
    (impure.global_torch, "['noise'][0][0]", "built again", "manual_seed(key.seed)"),
    (impure.global_random, "['flip']", "built again", "random.Random(key.seed)"),
    (impure.GeneratorOfTheInstance(), "['noise'][0]", "built again", "a generator made once"),
    (impure.Counter(), "[1]['calls']", "built again", "a counter"),
    (impure.clock, "['time'][1]", "built again", "reads the clock"),
    (impure.OnePrevious(), "['changed']", "built again", "the one before it"),
    (impure.OfThread(), "['scale']", "built in another thread", "threading.local"),
    (impure.clock_in_seconds, "['noise'][0]", "made in another process", "reads the clock"),
    (impure.CacheByIndex(), "['noise'][0]", "made in another process", "filled in another order"),
    (impure.OneBuffer(), "['row'][0]", "after later builds", "Return a copy"),
    (impure.DataChangedInPlace(), "['row'][0]", "built again", "data changed in place"),
]


@pytest.mark.parametrize(
    ("build", "place", "trial", "cause"),
    IMPURE,
    ids=[getattr(build, "__name__", type(build).__name__) for build, *_ in IMPURE],
)
def test_an_impure_build_is_caught(build, place, trial, cause):
    """With the index, the place, how it came out otherwise, and the likely cause."""
    text = message(build)
    assert f": sample{place} is " in text
    assert "for index " in text
    assert trial in text
    assert cause in text


def test_the_whole_message():
    """It names rule, index, epoch, place, both values, trial, cause and remedy."""
    text = message(impure.Counter(), samples=3)
    assert text == (
        "build must give the same sample for the same key, but for index 0, epoch 0: "
        "sample[1]['calls'] is 3 at first, 4 built again. It is not the global random states: "
        "build reads the clock, or keeps something from call to call (a generator made once, a "
        "counter, data changed in place). Make random generators from key.seed in each call, and "
        "change nothing that is kept"
    )


def test_the_order_of_a_set_is_caught():
    """By default the other process is a new interpreter, with other hash seeds."""
    text = message(impure.order_of_a_set, context=None)
    assert "sample['words'][" in text
    assert "made in another process (spawn)" in text
    assert "the order of a set" in text


def test_the_number_of_threads_is_caught():
    """Workers run torch with one thread; what rounds otherwise there is told apart."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        text = message(impure.number_of_threads)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert "sample['sum'] is 2 at first, 1 made in another process" in text
    assert "torch.set_num_threads(1)" in text


def test_an_impure_finish_is_caught():
    """What it draws from elsewhere."""
    text = message(impure.index_alone, finish=impure.global_noise)
    assert text.startswith("finish must")
    assert "default_rng(key.use_seed)" in text


# --- save and load --------------------------------------------------------------------------------


def save_json(sample, file):
    file.write(json.dumps(sample).encode())


def load_json(file):
    return json.loads(file.read())


def save_half(sample, file):
    np.save(file, sample["x"].astype(np.float16))


def load_single(file):
    return {"x": np.load(file).astype(np.float32)}


def save_fortran(sample, file):
    np.save(file, np.asfortranarray(sample["x"]))


def load_array(file):
    return {"x": np.load(file)}


def grid(key):
    return {"x": key.rng().random((2, 3), np.float32)}


def no_grid(key):
    return {"x": np.random.rand(2, 3)}


def no_list(key):
    return [float("nan"), np.random.rand()]


@pytest.mark.parametrize(
    ("build", "save", "load", "found"),
    [
        (lambda key: (1, 2), save_json, load_json, "sample is (1, 2), a tuple, as built, [1, 2]"),
        (lambda key: {1: 2}, save_json, load_json, "sample[1] is 2 as built, absent as loaded"),
        (grid, save_half, load_single, "sample['x'][0, 0] is 0."),
        (grid, save_half, load_array, "sample['x'] is of dtype float32 as built, of dtype float16"),
    ],
)
def test_a_lossy_pair_is_caught(build, save, load, found):
    """Values, types and dtypes must survive."""
    text = message(build, save=save, load=load)
    assert text.startswith("save and load must give back every value, type and dtype, but for ")
    assert found in text


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (no_list, {"save": save_json, "load": load_json}),
        (no_grid, {"save": save_fortran, "load": load_array}),
        (no_grid, {"save": pickle.dump, "load": pickle.load}),
        (no_grid, {"load": functools.partial(torch.load, weights_only=False)}),
        (no_grid, {"format": "tensors"}),
    ],
)
def test_a_lossless_pair_passes(build, options):
    """Order in memory need not survive: it is the build, impure for once, that is caught."""
    assert message(build, **options).startswith("build must give the same sample")


def test_what_a_format_cannot_store_is_its_own_error():
    """With the place, and a note that names the index."""
    with pytest.raises(TypeError, match=r"cannot store sample\['x'\]") as caught:
        check(lambda key: {"x": {1, 2}}, format="tensors")
    assert any("index 3" in note for note in caught.value.__notes__)


def test_what_load_raises_names_the_index():
    """A load that fails would be a sample built anew in every epoch."""

    def load(file):
        raise EOFError("too short")

    with pytest.raises(EOFError, match="too short") as caught:
        check(grid, load=load)
    assert caught.value.__notes__ == ["in load for index 3, epoch 0"]


# --- the contract ---------------------------------------------------------------------------------


def test_samples_must_agree():
    """The first breach is named with both indices; contract=False allows it."""

    def build(key):
        label = key.index if key.index < 50 else float(key.index)
        return {"label": label, "noise": np.random.rand()}

    text = message(build)
    assert "sample['label'] is 3, a int, for index 3, epoch 0, 99.0, a float, for index 99" in text
    assert "Pass contract=False" in text
    assert message(build, contract=False).startswith("build must give the same sample")


def test_samples_agree_as_they_are_delivered():
    """What finish makes of them counts, if there is one."""

    def build(key):
        return [torch.rand(1), torch.rand(1, 1)][key.index % 2]

    assert "of ndim 1" in message(build)
    assert "of ndim 1" in message(impure.index_alone, finish=lambda sample, key: build(key))
    assert "built again" in message(build, finish=lambda sample, key: sample.reshape(-1))


# --- no false alarm -------------------------------------------------------------------------------


def test_pure_builds_pass():
    """Every kind of sample that is right, in a new interpreter."""
    assert check(impure.pure_builds(), context=None, samples=8) is None


@pytest.fixture
def examples(monkeypatch):
    """Imports an example."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names = [path.stem for path in EXAMPLES.glob("*.py")]
    threads = torch.get_num_threads()
    yield importlib.import_module
    torch.set_num_threads(threads)
    for name in names:
        sys.modules.pop(name, None)


def test_the_examples_pass(examples):
    """The build of every example, and those of digits and ddp with their data."""
    digits, ddp = examples("digits"), examples("ddp")
    data = digits.load_digits()
    builds = impure.Several(
        digits=digits.Build(data.images, data.target),
        ddp=ddp.Build(data.images, data.target),
        curriculum=examples("curriculum").build,
        varlen=examples("varlen").build,
    )
    check(builds, size=len(data.target), epochs=9)
    curve = examples("lifetime_curve")
    digits_of_curve = curve.digits()
    build = curve.Build(
        digits_of_curve.images,
        digits_of_curve.labels,
        digits_of_curve.side,
        digits_of_curve.scale,
        whole=False,
    )
    check(build, size=len(digits_of_curve.labels), finish=curve.finish)


def test_the_examples_of_other_domains_pass(examples, tmp_path):
    """Their libraries draw from the global random states, so they refuse other threads."""
    images, volumes = examples("images"), examples("volumes")
    paths, _ = images.cut(tmp_path)
    builds = impure.Several(
        swap_in=FromDataset(examples("swap_in").DATASET),
        images=FromDataset(images.Tiles(paths, augment=True)),
        volumes=volumes.build,
    )
    check(builds, size=len(paths))


def test_no_samples_pass():
    """Nothing is built of nothing."""
    check(functools.partial(impure.fails_at, index=0), size=0)


@pytest.mark.parametrize("size", [1, 2])
def test_the_smallest_sets_are_checked(size):
    """As far as they go, at a lifetime of 1 too, where nothing is stored."""
    for lifetime in 1, 4:
        with pytest.raises(ImpureBuildError, match="built again"):
            check_build(
                impure.global_numpy,
                ReusePolicy(lifetime),
                size=size,
                multiprocessing_context="fork",
            )


# --- what it does ---------------------------------------------------------------------------------


def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("build", [impure.global_numpy, impure.fails_at])
def test_the_global_random_states_are_given_back(build):
    """Also where the check fails or is broken off by an error."""
    before = states()
    with pytest.raises((ImpureBuildError, TypeError)):
        check(build)
    assert states() == before


def test_it_builds_each_key_four_times(tmp_path):
    """Three times here, once in another process; a finish that is pure passes; no state changes."""
    log = tmp_path / "log"

    def build(key):
        append(log, f"{key.index} {key.epoch}\n")
        return {"index": key.index}

    before = states()
    check(build, samples=5, finish=impure.fresh_noise, format="tensors")
    assert states() == before
    lines = log.read_text().split("\n")[:-1]
    assert len(lines) == 20
    assert {lines.count(line) for line in lines} == {4}
    assert lines[5:10] == lines[:5][::-1]  # in another order
    assert lines[15:] == lines[:5][::-1]


@pytest.mark.parametrize("lifetime", [1, 2, 4, 7, 10**9])
@pytest.mark.parametrize("size", [0, 1, 2, 5, 100, 10**12])
@pytest.mark.parametrize(("samples", "epochs"), [(1, 1), (2, 2), (3, 2), (8, 2), (8, 90), (8, 1)])
def test_the_keys_are_spread(lifetime, size, samples, epochs):
    """Valid and distinct; where there are enough, of both ends, two generations, all epochs."""
    policy = ReusePolicy(lifetime)
    keys = keys_to_try(policy, size, samples, epochs)
    assert len(keys) <= samples
    assert len(set(keys)) == len(keys)
    assert bool(keys) == bool(size)
    assert all(0 <= key.index < size and 0 <= key.epoch < epochs for key in keys)
    if samples == 8 and size >= 5:
        assert {0, size - 1} <= {key.index for key in keys}
        assert len(keys) >= 5
        if epochs > 1 and lifetime <= size:
            generations = {}
            for key in keys:
                generations.setdefault(key.index, set()).add(key.generation)
            assert max(map(len, generations.values())) >= 2


# --- errors ---------------------------------------------------------------------------------------


def test_what_build_raises_names_the_index():
    """The error of the user's passes as it is, with a note, wherever it comes up."""
    with pytest.raises(ValueError, match="no such picture") as caught:
        check(functools.partial(impure.fails_at, index=99))
    assert any("index 99" in note for note in caught.value.__notes__)
    with pytest.raises(LookupError, match="not in this thread") as caught:
        check(impure.fails_in_a_thread)
    assert any("index 3" in note for note in caught.value.__notes__)


def test_what_build_raises_elsewhere_comes_back():
    """With its type, its index, and where in the code of the other process."""
    with pytest.raises(FileNotFoundError, match="not on this machine") as caught:
        check(elsewhere(impure.fails_elsewhere))
    notes = "\n".join(caught.value.__notes__)
    assert "index 99" in notes
    assert "in another process" in notes
    assert "impure.py" in notes


def test_a_process_that_dies_is_an_error():
    """It says with which exit code, and at which index."""
    with pytest.raises(RuntimeError, match="ended with exit code 7 before it had made index 99"):
        check(elsewhere(impure.dies_elsewhere))
    assert not children()


def elsewhere(build):
    """The build, which knows what process this is."""
    return functools.partial(build, pid=os.getpid())


def test_a_build_that_cannot_be_pickled_goes_to_a_fork():
    """Without a context, where a pid is caught; with one it is an error that names the argument."""
    text = message(lambda key: impure.of_process(key), context=None)
    assert "sample['tensor'][1] is " in text
    assert "made in another process (fork)" in text
    assert "os.getpid()" in text
    with pytest.raises(TypeError, match=r"^build must be picklable"):
        check(lambda key: key.index, context="spawn")
    with pytest.raises(TypeError, match=r"^finish must be picklable"):
        check(impure.index_alone, finish=lambda sample, key: sample, context="spawn")
    assert not children()


def test_a_build_that_another_interpreter_does_not_have_is_an_error():
    """As what was typed in at a prompt is: the reason is that of the other process."""
    with pytest.raises(TypeError, match="started by 'spawn': ImportError: no such module here"):
        check(impure.OnlyHere(), context="spawn")
    assert not children()


SCRIPT = """
from reuseloader import ReusePolicy, check_build

def build(key):
    return key.index

check_build(build, ReusePolicy(2), size=9)
print("passed")
"""


def test_a_script_needs_its_guard(tmp_path):
    """Without it the other process ends at once, and the error says what to do."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 1
    assert run.stdout == ""
    assert "ended with exit code 1 before it had started" in run.stderr
    assert '`if __name__ == "__main__":`' in run.stderr


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"size": -1}, ValueError, "size must be"),
        ({"size": 1.5}, TypeError, "size must be"),
        ({"samples": 0}, ValueError, "samples must be"),
        ({"epochs": 0}, ValueError, "epochs must be"),
        ({"contract": None}, TypeError, "contract must be"),
        ({"format": "npz"}, ValueError, "format must be"),
        ({"save": 3}, TypeError, "save must be"),
        ({"finish": 3}, TypeError, "finish must be"),
        ({"context": "thread"}, ValueError, "multiprocessing_context must be"),
    ],
)
def test_arguments_are_checked(options, kind, match):
    """Each error names the argument."""
    with pytest.raises(kind, match=match):
        check(impure.index_alone, **options)


def test_the_build_and_the_policy_are_checked():
    """A dataset or a lifetime in their place is an error, and so is a tensor on no CPU."""
    with pytest.raises(TypeError, match="build must be callable"):
        check(3)
    with pytest.raises(TypeError, match="policy must be a ReusePolicy"):
        check_build(grid, 4, size=3)
    with pytest.raises(TypeError, match="sample is on device 'meta'"):
        check(lambda key: torch.zeros(1, device="meta"))
    assert issubclass(ImpureBuildError, ReuseError)
