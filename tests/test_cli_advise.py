import subprocess
import sys
from dataclasses import replace

import pytest
from cli_helpers import assert_error, cli
from helpers import FORKS, names

pytestmark = pytest.mark.filterwarnings(FORKS)

ONE_WORKER = ["--ranks-per-machine", 1024]
JOB = """
import torch

print("imported")


def build(key):
    return torch.zeros(100), key.index


def step(batch):
    images, labels = batch
    assert images.shape == (5, 50) and labels.tolist() == [7] * 5
    seen.append(len(labels))


def finish(sample, key):
    return sample[0][:50], 7


def collate(samples):
    return torch.stack([image for image, _ in samples]), torch.tensor([n for _, n in samples])


def broken(key):
    raise FileNotFoundError(2, "no such image", "a.png")


class Builds:
    build = staticmethod(build)


seen, number = [], 3
"""


@pytest.fixture(autouse=True)
def job(tmp_path, monkeypatch):
    """The current directory has job.py, and raises.py."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "raises.py").write_text("import not_there_at_all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("job", None)


def advise(capsys, build, *argv):
    given = ["--size", 10, "--path", "cache/train", "--batch-size", 5, *ONE_WORKER]
    return cli(capsys, "advise", build, *given, *argv)


def test_it_advises(capsys):
    """The text is that of the advice; the samples' directory is not made, nothing is left."""
    result = advise(capsys, "job:build", "--step", 0.25, "--seed", -1)
    assert result.code == 0
    assert result.out.startswith("10 samples an epoch, shared by 1024 ranks, 1 processor each\n")
    assert "training on a batch of 5" in result.out
    assert "\nRecommended: lifetime=1, num_workers=1." in result.out
    assert result.err == "imported\n"
    assert names(".") == ["job.py", "raises.py"]


def test_all_functions_can_be_named(capsys):
    """Step, finish and collate_fn too, by dotted names and from files; JSON has all fields."""
    argv = ["--step", "job:step", "--finish", "job:finish", "--collate-fn", "job:collate"]
    more = ["--format", "tensors", "--pipeline", "dataloader", "--lmdb"]
    result = advise(capsys, "job.py:Builds.build", *argv, *more, "--json")
    assert result.code == 0
    facts = result.facts
    assert (facts["size"], facts["batch_size"], facts["pipeline"]) == (10, 5, "dataloader")
    assert facts["in_memory"] == 200
    assert facts["step"] > 0
    assert facts["machine"]["ranks"] == 1024
    assert len(sys.modules["job"].seen) >= 5


@pytest.mark.parametrize(
    ("build", "words"),
    [
        ("nowhere:build", ["no module nowhere", "first)"]),
        ("job.inner:build", ["no module job.inner"]),
        ("nowhere.py:build", ["no file nowhere.py"]),
        ("job:nothing", ["job has no nothing"]),
        ("job:Builds.nothing", ["job has no Builds.nothing"]),
        ("job:number", ["job:number must be callable, got 3"]),
        ("job", ["MODULE:NAME"]),
        (":build", ["MODULE:NAME"]),
        ("job:", ["MODULE:NAME"]),
        (".job:build", ["MODULE:NAME"]),
        ("queue.py:build", ["the name of another module, queue"]),
    ],
)
def test_what_cannot_be_found_is_one_line(build, words, tmp_path, capsys):
    """A module, a name or something to call that is not there is named."""
    (tmp_path / "queue.py").write_text("")
    result = advise(capsys, build)
    assert_error(replace(result, err=result.err.removeprefix("imported\n")), *words)


@pytest.mark.parametrize("argv", [["--step", "0"], ["--step", "soon"], ["--format", "zip"]])
def test_wrong_options_are_one_line(argv, capsys):
    """Numbers and words that cannot be right are errors before anything is imported."""
    assert_error(advise(capsys, "job:build", *argv), argv[0])


def test_a_disk_that_cannot_be_used_is_one_line(capsys):
    """Where nothing can be stored, the path is named before anything is imported."""
    assert_error(advise(capsys, "job:build", "--path", "job.py"), "job.py", "Not a directory")
    assert_error(advise(capsys, "job:build", "--path", ""), "--path must name a directory")


@pytest.mark.parametrize(
    ("build", "where", "what"),
    [
        ("job:broken", 'in broken\n    raise FileNotFoundError(2, "no such image"', "a.png"),
        ("raises:build", "import not_there_at_all", "ModuleNotFoundError"),
    ],
)
def test_errors_of_the_users_code_keep_their_traceback(build, where, what, capsys):
    """What a build raises, or the import of its module, is shown whole, with exit code 2."""
    result = advise(capsys, build)
    assert (result.code, result.out) == (2, "")
    assert "Traceback (most recent call last):" in result.err
    assert where in result.err
    assert what in result.err
    assert result.err.splitlines()[-1].startswith(f"reuseloader: error: {build.split(':')[0]}")


def test_workers_that_are_not_forked_import_the_module_too():
    """Run as the installed script is, without the current directory in sys.path."""
    given = ["job:build", "--size", 10, "--path", ".", "--batch-size", 5, *ONE_WORKER]
    argv = ["advise", *map(str, given), "--multiprocessing-context", "spawn"]
    result = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-m", "reuseloader", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Recommended: num_workers=1." in result.stdout
