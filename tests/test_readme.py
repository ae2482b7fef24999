"""The README's Python blocks run as they stand; its bash blocks are run by CI."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
PYTHON = [code for language, code in BLOCKS if language == "python"]
FRAMEWORK = re.compile(r"^(?:import|from) (accelerate|ignite|lightning|transformers)\b", re.M)
ONLY_OURS = """
import runpy, sys, warnings
from reuseloader import ReuseWarning
with warnings.catch_warnings(record=True) as caught:
    runpy.run_path(sys.argv[1], run_name="__main__")
sys.exit("".join(str(one.message) for one in caught if one.category is ReuseWarning) or 0)
"""


@pytest.fixture(scope="module")
def empty_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


def frameworks(number):
    """The frameworks that a block imports."""
    return set(FRAMEWORK.findall(PYTHON[number]))


@pytest.mark.parametrize(
    "number", range(len(PYTHON)), ids=lambda number: "-".join([str(number), *frameworks(number)])
)
def test_python_block_runs(number, empty_directory):
    """Each block is a script of its own that runs without a warning.

    One with a framework runs where that is installed; the framework's own warnings are its affair.
    """
    for name in frameworks(number):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}, of the extra 'frameworks'")
    script = empty_directory / f"block_{number}.py"
    script.write_text(PYTHON[number], encoding="utf-8")
    how = ["-c", ONLY_OURS] if frameworks(number) else ["-W", "error"]
    run = subprocess.run(
        [sys.executable, *how, script.name],
        cwd=empty_directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_first_two_bash_blocks_are_the_two_commands():
    """One runs the main job, one runs the tests, both from an empty environment."""
    bash = [code for language, code in BLOCKS if language == "bash"]
    assert "examples/digits.py" in bash[0]
    assert "pytest" in bash[1]
    assert all(code.startswith("python3 -m venv .venv\n") for code in bash[:2])
