"""Each example runs as it stands, with small settings, and says what it should.

Warnings are errors there too. Nothing here depends on how long anything takes.
"""

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import bits
from tqdm import tqdm

from reuseloader import FromDataset, ReusePolicy

EXAMPLES = Path(__file__).parents[1] / "examples"
PNG = b"\x89PNG\r\n\x1a\n"


def run(name: str, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Python 3.12 and 3.13 warn of every fork beside a thread, as DataLoader's own workers are
    ignored = ("-W", "ignore:This process:DeprecationWarning")
    command = [sys.executable, "-W", "error", *ignored, EXAMPLES / name, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def output_of(name: str, *arguments: str | Path, cwd: Path) -> str:
    done = run(name, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_tested_here():
    """No example without a test."""
    tested = {"curriculum", "ddp", "digits", "images", "lifetime_curve", "swap_in", "varlen"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested | {"volumes"}


SMALL_DIGITS = ("--epochs", "3", "--train-size", "24", "--batch-size", "8")


def digits_rows(output: str) -> dict[int, list[str]]:
    """Per lifetime, the columns of the table that do not depend on time."""
    rows = {}
    for line in output.splitlines():
        if re.match(r" +\d+ .*\|", line):
            lifetime, _, _, builds, hits, _, all_builds, all_hits, accuracy, *_ = line.split()
            rows[int(lifetime)] = [builds, hits, all_builds, all_hits, accuracy]
    return rows


def test_digits_gives_the_same_training_with_both_loaders(tmp_path):
    """A row for every lifetime, a plot, and the same builds and accuracies from both loaders."""
    tables = []
    for loader, cache in ("nodes", ()), ("dataloader", ("--cache", "kept")):
        settings = (*SMALL_DIGITS, *cache, "--loader", loader, "--out", f"{loader}.png")
        output = output_of("digits.py", *settings, cwd=tmp_path)
        tables.append(digits_rows(output))
        assert (tmp_path / f"{loader}.png").read_bytes().startswith(PNG)
        assert re.search(r"a steady epoch at lifetime 4 costs [\d.]+ of one at lifetime 1", output)
        assert re.search(r"test accuracy at equal builds, 36 samples: [\d.]+ %", output)
    assert tables[0] == tables[1]
    counts = {lifetime: row[:4] for lifetime, row in tables[0].items()}
    assert counts == {
        1: ["24", "0", "72", "0"],
        2: ["12", "12", "48", "24"],
        4: ["6", "18", "36", "36"],
    }

    # another run on what the last one kept builds less, and gives the same accuracy
    assert len(list((tmp_path / "kept" / "lifetime-4").glob("*.pt"))) == 24
    again = (*SMALL_DIGITS, "--cache", "kept", "--lifetime", "4", "--method", "thread")
    row = digits_rows(output_of("digits.py", *again, cwd=tmp_path))[4]
    assert int(row[2]) < 36
    assert row[4] == tables[0][4][4]
    assert (tmp_path / "digits.png").read_bytes().startswith(PNG)


def test_digits_refuses_a_single_epoch(tmp_path):
    """There is no steady epoch then, and the message says so."""
    done = run("digits.py", "--epochs", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert "--epochs must be at least 2" in done.stderr


def test_lifetime_curve_has_a_row_for_every_way(tmp_path):
    """A table, what it comes to, and a plot."""
    settings = ("--data", "digits", "--epochs", "2", "--seeds", "2", "--train-size", "20")
    output = output_of("lifetime_curve.py", *settings, "--workers", "0", cwd=tmp_path)
    rows = re.findall(r"^([\w+ ]+?) +\| +[\d.]+ s, [\d.]+ \|.*±.*\|.*±.*\|.*±", output, re.M)
    longer = ["2", "4", "8", "16", "static"]
    assert sorted(rows) == sorted(["1", *longer, *(f"{way} + finish" for way in longer)])
    assert "digits: 20 training images, 1777 test images, 2 epochs, 2 seeds" in output
    assert re.search(r"equal steps: 2 epochs +\| equal builds: 22 +\| equal time: [\d.]+ s", output)
    assert re.search(r"at equal steps: .* ± [\d.]+, (NOT )?below 1.0", output)
    assert re.search(r"at equal time: .* ± [\d.]+, (NOT )?below 0.0", output)
    assert (tmp_path / "lifetime_curve.png").read_bytes().startswith(PNG)


def test_lifetime_curve_does_not_depend_on_workers(monkeypatch):
    """The errors, and with them all but the comparison at equal time, are those of the seed."""
    example = load("lifetime_curve")
    monkeypatch.setattr(example, "WAYS", [example.Way(1, False), example.Way(2, True)])
    data = example.digits()._replace(train_size=20)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the example does
    try:
        alone, with_workers = (
            example.train_all(
                data,
                argparse.Namespace(epochs=3, workers=workers, method="thread"),
                seed=3,
                bar=tqdm(disable=True),
            )
            for workers in (0, 2)
        )
    finally:
        torch.set_num_threads(threads)
    assert [len(run.seconds) for run in alone] == [3, 3]
    assert [run.error for run in with_workers] == [run.error for run in alone]


def test_lifetime_curve_differs_only_in_where_the_cheap_part_runs():
    """The first use of a sample has the same bits in both places, the later ones only if stored."""
    example = load("lifetime_curve")
    data = example.mnist()
    stored, expensive = (
        example.Build(data.images, data.labels, data.side, 1, whole) for whole in (True, False)
    )
    policy = ReusePolicy(lifetime=3)
    sample = stored(policy.key(3, 3))
    assert sample[0].shape == (1, 28, 28)
    uses = [example.finish(expensive(policy.key(3, 3)), policy.key(3, e)) for e in (3, 4, 5)]
    equal = [torch.equal(sample[0], image) for image, _ in uses]
    assert equal == [True, False, False]
    assert [label for _, label in uses] == [sample[1]] * 3


def test_lifetime_curve_compares_at_equal_cost():
    """Between epochs by interpolation, after the last one at the end; differences by seed."""
    example = load("lifetime_curve")

    def curve(lifetime, seconds, *errors):
        runs = [example.Run([], example.new_network(8, 0), seconds, list(e)) for e in errors]
        return example.Curve(example.Way(lifetime, False), runs, size=8)

    base = curve(1, [4.0, 4.0, 4.0, 4.0], (9, 7, 5, 3), (8, 6, 4, 2))
    reusing = curve(4, [4.0, 1.0, 9.0, 1.0], (9, 7, 5, 4), (8, 6, 4, 4))
    assert base.builds.tolist() == [8, 16, 24, 32]
    assert reusing.builds.tolist() == [8, 10, 12, 14]
    assert reusing.time.tolist() == [4, 5, 6, 7]

    steps = example.compare("steps", [base, reusing], "steps", 4)
    assert steps.points == [(2.5, 0.5), (4.0, 0.0)]
    assert steps.gaps == [(0.0, 0.0), (1.5, 0.5)]
    assert steps.ended == [False, False]
    builds = example.compare("builds", [base, reusing], "builds", 20)
    assert builds.points == [(5.5, 0.5), (4.0, 0.0)]
    assert builds.ended == [False, True]
    assert example.compare("time", [base, reusing], "time", 6).points == [(7.5, 0.5), (4.5, 0.5)]


def test_swap_in_changes_nothing_but_the_time(tmp_path):
    """The graph with reuse delivers the ordinary stream, and resumes in mid-epoch."""
    settings = ("--epochs", "3", "--size", "50", "--batch-size", "8")
    output = output_of("swap_in.py", *settings, cwd=tmp_path)
    assert "indices and labels: equal, in the same order, in all 3 epochs" in output
    assert "samples: equal bit for bit" in output
    assert re.search(r"resume: stopped after batch 3 of 7 of epoch 1, .* equal bit for bit", output)


def test_curriculum_is_replayed(tmp_path):
    """Every replay has the batches of the first run, and the whole one its weights."""
    output = output_of("curriculum.py", "--epochs", "5", "--size", "50", cwd=tmp_path)
    for replay, epochs in [
        ("replay from an empty directory, other workers", "0 to 4"),
        ("replay from a later epoch, directory of the first run", "2 to 4"),
        ("replay from a later epoch, empty directory", "2 to 4"),
    ]:
        assert re.search(f"{replay}: all .* epochs {epochs} are equal bit for bit", output)
    assert "weights after that replay: equal bit for bit" in output


def test_varlen_learns_from_padded_batches(tmp_path):
    """Lengths differ, both loaders agree, and the network learns to read digits."""
    settings = ("--epochs", "5", "--size", "500", "--target", "40")
    output = output_of("varlen.py", *settings, cwd=tmp_path)
    low, high = map(int, re.search(r"epoch  0: (\d+) to (\d+) points", output).groups())
    assert low < high
    assert "nodes and ReuseDataLoader: equal batches in all 5 epochs" in output
    assert re.search(r"test accuracy: [\d.]+ % of 1297 digits", output)


@pytest.mark.parametrize("name", ["images", "volumes"])
def test_other_libraries_build_as_often_as_the_rule_says(name, tmp_path):
    """A row for each lifetime, with the builds and hits of the closed form."""
    output = output_of(f"{name}.py", "--epochs", "2", "--size", "8", cwd=tmp_path)
    table, _, report = output.partition("a steady epoch at lifetime 4 costs ")
    rows = [line.split() for line in table.splitlines() if re.match(r" +\d", line)]
    assert [(row[0], row[3], row[4]) for row in rows] == [("1", "16", "0"), ("4", "10", "6")]
    assert re.match(r"[\d.]+ of one without reuse\n", report)
    assert ("8 samples an epoch, lifetime 4, 2 workers" in report) == (name == "volumes")


@pytest.mark.parametrize("name", ["images", "volumes"])
def test_what_other_libraries_build_depends_on_the_key_alone(name, tmp_path):
    """Kornia and TorchIO give the same for the same key, and another for another one."""
    example = load(name)
    if name == "images":
        tiles = example.Tiles(example.cut(tmp_path)[0][:3], augment=True)
        build = FromDataset(tiles)
    else:
        build = example.build
    policy = ReusePolicy(2, 7)
    once, again, other = (build(policy.key(2, epoch)) for epoch in (0, 1, 2))
    assert bits(once) == bits(again)
    assert bits(once) != bits(other)


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_the_verdicts_can_fail():
    """What an example claims is checked by it: other batches or builds end it with an error."""
    batches = [{"index": torch.tensor([1, 2])}, {"index": torch.tensor([3])}]
    others = [batches[0], {"index": torch.tensor([4])}]
    swap_in = load("swap_in")
    swap_in.require_equal("stream", batches, batches, "index")
    with pytest.raises(SystemExit, match="FAILED: stream: batch 1 differs in 'index'"):
        swap_in.require_equal("stream", batches, others, "index")
    with pytest.raises(SystemExit, match="FAILED: stream: 2 batches against 1"):
        swap_in.require_equal("stream", batches, batches[:1], "index")

    curriculum = load("curriculum")
    epochs = [curriculum.Epoch([checksum], torch.zeros(1), 0.0) for checksum in "abc"]
    curriculum.require_equal("replay", epochs[1:], epochs)
    with pytest.raises(SystemExit, match="FAILED: replay: the batches of epoch 1 differ"):
        curriculum.require_equal("replay", [epochs[2], epochs[2]], epochs)

    varlen = load("varlen")
    with pytest.raises(SystemExit, match=r"FAILED: test accuracy .* is below 101 %"):
        varlen.evaluate(varlen.PointNetwork(), argparse.Namespace(size=1700, target=101))

    digits = load("digits")
    settings = argparse.Namespace(seed=0, train_size=8, epochs=2)
    run = digits.Run(4, [], None, digits.new_network(0), fresh=True, built=[8, 10])
    digits.check_builds([run], settings)
    for wrong in [8, 9], [8, 11]:
        run.built = wrong
        with pytest.raises(SystemExit, match=r"FAILED: lifetime 4 built .* it is \[8, 10\]"):
            digits.check_builds([run], settings)


def ranks_of_ddp(count: int, *arguments: str, cwd: Path) -> str:
    """The output of ddp.py on this many ranks, which torchrun starts."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    script = [sys.executable, "-W", "error", EXAMPLES / "ddp.py"]
    options = ("--train-size", "61", "--batch-size", "4", "--epochs", "3", "--cache", "cache")
    done = subprocess.run(
        [*torchrun, f"--nproc-per-node={count}", *script, *options, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ddp_goes_on_with_another_number_of_ranks(tmp_path):
    """Two ranks stop in epoch 1, three go on: all epochs complete, builds of the ranks even."""
    options = ("--checkpoint", "ddp.pt")
    first = ranks_of_ddp(2, *options, "--stop", "1", cwd=tmp_path)
    assert "epoch 0, rank 1: 31 samples, " in first
    assert "stopped in epoch 1, after 32 samples" in first
    second = ranks_of_ddp(3, *options, cwd=tmp_path)
    assert "going on in epoch 1, after 32 samples" in second
    counts = re.findall(r"epoch (\d), rank \d: (\d+) samples, (\d+) built", second)
    assert [count for epoch, count, _ in counts if epoch == "1"] == ["10"] * 3
    built = [int(number) for epoch, _, number in counts if epoch == "2"]
    assert len(built) == 3
    assert max(built) - min(built) <= 2  # padding may be built twice
    assert "epoch 2: complete" in second
