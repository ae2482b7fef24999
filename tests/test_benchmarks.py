"""The benchmarks in short: each one runs, and what it measures delivers the right samples."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from helpers import TESTS

SHORT_FORMS = {
    "hit_parts": "--hits 2 --rounds 1",
    "hit": "--samples 4 --sizes 1000 --rounds 1",
    "order": "--n 100 --rounds 1",
    "graph": "--samples 16 --size 1000 --batch 4 --rounds 1",
    "epoch": "--samples 16 --size 1000 --batch 8 --build 0.0005 --rounds 1",
    "breakeven": "--samples 8 --size 1000 --batch 4 --rounds 1 --builds 0.0001 --sizes 100 "
    "--budget 0.001",
    "model": "--samples 16 --size 1000 --batch 4 --build 0.0005 --step 0.0001 --rounds 1",
    "peers": "--samples 16 --size 1000 --batch 4 --build 0.0005 --rounds 1",
    "scale": "--sizes 100 --files 100 --rounds 1",
    "all": "--scripts hit --rounds 1",
}
PEERS = ("diskcache", "joblib", "monai", "torchio")


@pytest.mark.skipif(sys.platform != "linux", reason="memory from /proc, fork: Linux")
@pytest.mark.parametrize("name", SHORT_FORMS)
def test_it_runs(name):
    """It says on what it ran and ends well; how long anything took is no matter here."""
    missing = [peer for peer in PEERS if find_spec(peer) is None]
    if name == "peers" and missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    script = TESTS / "benchmarks" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, script, *SHORT_FORMS[name].split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Python 3." in done.stdout
    assert "min .. max" in done.stdout


def test_every_script_is_tested_here():
    """None rots: what is no script is a module that the others share."""
    scripts = {
        path.stem
        for path in (TESTS / "benchmarks").glob("*.py")
        if '__name__ == "__main__"' in path.read_text()
    }
    assert scripts == set(SHORT_FORMS)
