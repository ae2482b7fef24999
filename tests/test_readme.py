"""The README's Python blocks run as they stand; its bash blocks are run by CI.

README.ko.md says the same in Korean, piece by piece: its blocks are those of the README.
"""

import importlib.util
import re
import subprocess
import sys
from collections import Counter
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
# A fenced block, a heading, a table row, or a paragraph, list item, quote or indented line.
PIECE = re.compile(
    r"^```[\s\S]*?^```$|^#+ .*$|^\|.*$|^(?: {4}|- |> )?\S.*(?:\n(?!- |$).+)*", re.MULTILINE
)
MARK = re.compile(r"```|#+|\||- |> | {4}|")


def pieces(path):
    """The pieces of a Markdown file in their order, each as (mark it begins with, text)."""
    return [(MARK.match(text)[0], text) for text in PIECE.findall(path.read_text(encoding="utf-8"))]


ENGLISH, KOREAN = pieces(README), pieces(README.with_name("README.ko.md"))


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


def numbers(text):
    """How often each number, with its sign, is written in a text; Korean has no million."""
    return Counter(re.findall(r"[-+]?(?:\d[\d.,]*\d|\d)", text.replace(" million", ",000,000")))


def names(text):
    """The code spans and the targets of links and images; each language links to the other."""
    found = re.findall(r"`[^`]+`|\]\(.*?\)", text.replace("README.ko.md", "README.md"))
    return {" ".join(one.split()) for one in found}


def test_korean_has_the_same_pieces():
    """Headings, paragraphs, list items, table rows and blocks of code come in the same order."""
    assert [mark for mark, _ in KOREAN] == [mark for mark, _ in ENGLISH]


def test_korean_has_the_same_code():
    """Fenced and indented blocks are equal, byte for byte."""
    korean, english = (
        [text for mark, text in document if mark in ("```", "    ")]
        for document in (KOREAN, ENGLISH)
    )
    assert korean == english


def test_korean_names_the_same_things():
    """Each piece has the same code spans, links and images."""
    assert [names(text) for _, text in KOREAN] == [names(text) for _, text in ENGLISH]


def test_korean_has_the_same_figures():
    """Table rows have the same numbers; other text has all of the README's.

    It may have more there, since it writes some with digits that English spells out.
    """
    for (mark, english), (_, korean) in zip(ENGLISH, KOREAN, strict=True):
        if mark == "|":
            assert numbers(korean) == numbers(english)
        else:
            assert numbers(korean) >= numbers(english), korean
