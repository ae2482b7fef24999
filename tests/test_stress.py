"""The stress scripts in short: each one runs, and finds nothing wrong."""

import subprocess
import sys

import pytest
from helpers import TESTS

SHORT_FORMS = {
    "damage": ["--rounds", "300"],
    "fuzz": ["--rounds", "20000"],
    "fuzz_tensors": ["--rounds", "20000"],
    "kill": ["--rounds", "4"],
    "full_disk": ["--rounds", "6"],
    "many": ["--rounds", "4", "--fetches", "150"],
    "flat": ["--rounds", "14", "--batches", "30"],
    "ranks": ["--rounds", "3"],
}


@pytest.mark.skipif(sys.platform != "linux", reason="orphans, mounts, /proc: Linux")
@pytest.mark.parametrize("name", SHORT_FORMS)
def test_nothing_is_wrong(name):
    """A few rounds, with another seed each time; the output has the seed."""
    script = TESTS / "stress" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", script, *SHORT_FORMS[name]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "right: " in done.stdout
