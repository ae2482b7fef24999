import sys

import numpy as np
import pytest
from cli_helpers import assert_error, both, cli

from reuseloader import ReusePolicy
from reuseloader.cli.words import byte_size
from reuseloader.text import amount


def plan(capsys, size, lifetime, *argv):
    return both(capsys, "plan", "--size", size, "--lifetime", lifetime, *argv)


@pytest.mark.parametrize(("size", "lifetime", "epochs"), [(10, 4, 9), (7, 1, 3), (3, 10, 25)])
def test_builds_are_those_of_the_rule(size, lifetime, epochs, capsys):
    """Builds of every epoch and in all are the policy's."""
    code, text, facts = plan(capsys, size, lifetime, "--epochs", epochs)
    builds = [ReusePolicy(lifetime).builds(epoch, size) for epoch in range(epochs)]
    assert code == 0
    assert facts["builds"] == builds
    assert facts["total_builds"] == sum(builds)
    assert facts["builds_without_reuse"] == size * epochs
    assert facts["share"] == sum(builds) / (size * epochs)
    assert f"{sum(builds)} builds in {epochs} epochs instead of {size * epochs}" in text


def test_the_table(capsys):
    """Every epoch is a row, with sums; of very many the middle is left out."""
    _, text, _ = plan(capsys, 50_000, 4, "--epochs", 3)
    assert text.splitlines()[2:6] == [
        "epoch  builds  in all  without reuse    share",
        "    0  50,000  50,000         50,000  100.0 %",
        "    1  12,500  62,500        100,000   62.5 %",
        "    2  12,500  75,000        150,000   50.0 %",
    ]
    _, text, facts = plan(capsys, 50_000, 4, "--epochs", 1000)
    assert len(facts["builds"]) == 1000
    assert len(text.splitlines()) < 50
    assert "\n  999  12,500" in text


@pytest.mark.parametrize("lifetime", [1, 2, 3, 4, 6, 12, 59, 60, 61, 1000])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 6, 8, 9, 13, 25])
def test_builds_of_a_batch(batch_size, lifetime, capsys):
    """No batch but the last, in balanced order, builds fewer or more samples than said."""
    size, policy = 60, ReusePolicy(lifetime)
    _, text, facts = plan(capsys, size, lifetime, "--batch-size", batch_size)
    fewest, most = facts["batch"]["fewest_builds"], facts["batch"]["most_builds"]
    seen = set()
    whole = size - size % lifetime or size
    for epoch in range(1, 65):
        order = policy.order(np.arange(size), epoch, size)
        built = (order + epoch) % lifetime == 0
        for start in range(0, whole - batch_size + 1, batch_size):
            seen.add(int(built[start : start + batch_size].sum()))
    assert fewest <= min(seen)
    assert max(seen) <= most
    if batch_size % lifetime == 0:
        assert fewest == most == batch_size // lifetime
    assert ("a multiple of" in text) == (fewest != most and lifetime < size)


def test_builds_of_a_batch_are_bounded_closely(capsys):
    """Both ends of the range are met where there are batches enough."""
    size, policy = 6000, ReusePolicy(4)
    for batch_size in (1, 2, 3, 5, 6, 7, 10):
        _, _, facts = plan(capsys, size, 4, "--batch-size", batch_size)
        built = (policy.order(np.arange(size), 1, size) + 1) % 4 == 0
        batches = built[: size // batch_size * batch_size].reshape(-1, batch_size).sum(axis=1)
        batch = facts["batch"]
        assert (batch["fewest_builds"], batch["most_builds"]) == (batches.min(), batches.max())


@pytest.mark.parametrize(("lifetime", "written"), [(1, 0), (4, 10 - 2 + 2 + 2 + 3), (100, 10)])
def test_bytes(lifetime, written, capsys):
    """What is stored at most, and written in all, follows; last uses are not stored."""
    _, text, facts = plan(capsys, 10, lifetime, "--epochs", 4, "--bytes-per-sample", "1.5 kB")
    assert facts["stored"] == {
        "bytes_per_sample": 1500,
        "most_bytes": 15_000 * (lifetime > 1),
        "bytes_written": 1500 * written,
    }
    assert f"written in all: {amount(1500 * written)}" in text


@pytest.mark.parametrize("argv", [["--bytes-per-sample", "much"], ["--epochs", "0"]])
def test_wrong_numbers_are_errors(argv, capsys):
    """What is no number is named."""
    assert_error(cli(capsys, "plan", "--size", 3, "--lifetime", 2, *argv), *argv)


def test_the_picture(tmp_path, capsys):
    """A PNG file is drawn; where that fails, the error names the file, or what to install."""
    path = tmp_path / "plan.png"
    code, text, facts = plan(capsys, 50, 4, "--png", path)
    assert code == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert str(path) in text
    assert facts["size"] == 50
    nowhere = tmp_path / "nowhere" / "plan.png"
    argv = ["plan", "--size", 50, "--lifetime", 4, "--png"]
    assert_error(cli(capsys, *argv, nowhere), nowhere)


def test_without_matplotlib(tmp_path, capsys, monkeypatch):
    """Without matplotlib only the picture is missed."""
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    argv = ["plan", "--size", 50, "--lifetime", 4]
    result = cli(capsys, *argv, "--png", tmp_path / "plan.png")
    assert_error(result, "pip install reuseloader[examples]")
    assert cli(capsys, *argv).code == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("150", 150),
        ("150B", 150),
        ("150kB", 150_000),
        ("150 KB", 150_000),
        ("1.5 MB", 1.5e6),
        ("2g", 2e9),
    ],
)
def test_bytes_from_people(text, size):
    """A number of bytes may be written in any of the usual ways."""
    assert byte_size(text) == size
