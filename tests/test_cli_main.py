import ast
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import assert_error, both, cli, fill, fill_lmdb
from helpers import names

import reuseloader.cli.main
from reuseloader.cli.main import COMMANDS

NAMES = [command.__name__.rpartition(".")[2] for command in COMMANDS]
ON_STORES = {"stat": [], "verify": [], "show": ["0"], "prune": ["--damaged", "--yes"]}


@pytest.mark.parametrize("command", NAMES)
def test_help_has_examples_and_exit_codes(command, capsys):
    """Every subcommand explains itself, with examples that begin with its name."""
    result = cli(capsys, command, "--help")
    assert result.code == 0
    assert f"\n  reuseloader {command} " in result.out
    assert "--json" in result.out
    assert "exit codes:" in result.out


def test_help_names_every_command(capsys):
    """The help of all lists the subcommands."""
    result = cli(capsys, "--help")
    assert result.code == 0
    assert all(f"\n    {name} " in result.out for name in NAMES)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nothing"],
        ["stat"],
        ["stat", "--nothing", "."],
        ["show", "."],
        ["show", ".", "-1"],
        ["show", ".", "one"],
        ["show", ".", str(2**63)],
        ["plan", "--size", "3"],
        ["plan", "--size", "0", "--lifetime", "1"],
        ["plan", "--size", "1.5", "--lifetime", "1"],
        ["prune", ".", "--lifetime", "0", "--yes"],
        ["prune", ".", "--yes"],
    ],
)
def test_wrong_usage_is_one_line(argv, capsys):
    """Arguments that nobody takes are one line on stderr and exit code 2."""
    assert_error(cli(capsys, *argv), "--help")


@pytest.mark.parametrize("command", ON_STORES)
def test_what_is_no_store_is_an_error_with_its_path(command, tmp_path, capsys):
    """A directory that is not there is not made; a file in its place is left alone."""
    missing, file = tmp_path / "missing", tmp_path / "file"
    odd = tmp_path / "two\nlines"
    file.write_text("a file")
    rest = ON_STORES[command]
    assert_error(cli(capsys, command, missing, *rest), missing, "No such file or directory")
    assert_error(cli(capsys, command, file, *rest), file, "Not a directory")
    assert_error(cli(capsys, command, odd, *rest), r"two\nlines")
    assert_error(cli(capsys, command, "", *rest), "must name a directory")
    assert names(tmp_path) == ["file"]
    assert file.read_text() == "a file"


@pytest.mark.parametrize("command", ["stat", "verify", "prune"])
def test_an_empty_directory_has_nothing_wrong(command, tmp_path, capsys):
    """In an empty directory nothing is found and nothing is made."""
    code, _, facts = both(capsys, command, tmp_path, *ON_STORES[command])
    assert (code, facts["samples"]) == (0, 0)
    assert names(tmp_path) == []


def test_without_lmdb_its_stores_are_an_error(store, capsys, monkeypatch):
    """Where lmdb is not installed, the error says what to install."""
    fill_lmdb(store)
    monkeypatch.setitem(sys.modules, "lmdb", None)
    monkeypatch.delitem(sys.modules, "reuseloader.lmdb_use")
    monkeypatch.delitem(sys.modules, "reuseloader.lmdb_environment")
    monkeypatch.delitem(sys.modules, "reuseloader.lmdb_start")
    for command, rest in ON_STORES.items():
        assert_error(cli(capsys, command, store, *rest), "pip install reuseloader[lmdb]")


def test_as_a_process(store):
    """``python -m reuseloader`` works with warnings as errors, and its exit code comes through."""
    fill(store)
    (store / "00000001.pt").write_bytes(b"")
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "reuseloader", "verify", store],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (1, "")
    assert "5 samples" in result.stdout
    assert "00000001.pt" in result.stdout
    (store / "00000001.pt").unlink()


def test_a_reader_that_leaves_is_no_error():
    """Output into a pipe that nobody reads ends without a word."""
    receiver, sender = os.pipe()
    os.close(receiver)
    with os.fdopen(sender, "w") as pipe:
        result = subprocess.run(
            [sys.executable, "-m", "reuseloader", "plan", "--size", "9", "--lifetime", "2"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (result.returncode, result.stderr) == (0, b"")


def test_an_interrupt_is_quiet(store, capsys, monkeypatch):
    """Control-C ends with exit code 130 and no traceback."""
    fill(store)
    monkeypatch.setattr(
        "reuseloader.audit.read_stamp", lambda record: os.kill(os.getpid(), signal.SIGINT)
    )
    result = cli(capsys, "verify", store)
    assert (result.code, result.out, result.err) == (128 + signal.SIGINT, "", "")


def test_names_of_any_characters_are_one_line(store, capsys):
    """Names that no terminal shows are escaped for people and whole for programs."""
    fill(store)
    strays = ["a\nb", "\x1b[31m", os.fsdecode(b"\xff")]
    for name in strays:
        (store / name).write_bytes(b"")
    code, text, facts = both(capsys, "stat", store)
    assert code == 0
    assert sorted(facts["strays"]) == sorted(strays)
    assert "'a\\nb'" in text
    assert "\x1b" not in text
    for name in strays:
        (store / name).unlink()


def test_only_the_command_line_imports_what_it_alone_needs():
    """Its modules import tqdm and matplotlib where they use them, and no other third party."""
    folder = Path(reuseloader.cli.main.__file__).parent
    third = set()
    for path in folder.glob("*.py"):
        assert importlib.import_module(f"reuseloader.cli.{path.stem}").__doc__
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = {id(node) for node in tree.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                package = node.module.partition(".")[0]
                if package in ("tqdm", "matplotlib"):
                    assert id(node) not in top, path
                if package not in sys.stdlib_module_names | {"reuseloader"}:
                    third.add(package)
    assert third == {"tqdm", "matplotlib"}
