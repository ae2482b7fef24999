import ast
import importlib
import inspect
import json
import pkgutil
import sys
from pathlib import Path

import pytest
from helpers import python

import reuseloader
import reuseloader.nodes

MODULES = [reuseloader, reuseloader.nodes]
PUBLIC = [
    pytest.param(module, name, id=f"{module.__name__}.{name}")
    for module in MODULES
    for name in module.__all__
]
NEEDED = {"torch", "numpy", "xxhash"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_is_sorted_and_complete(module):
    """__all__ is sorted, has each name once, and every name in it is there."""
    assert module.__all__ == sorted(set(module.__all__))
    for name in module.__all__:
        assert not name.startswith("_")
        assert getattr(module, name) is not None


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_what_is_importable_is_in_all(module):
    """Besides __all__ the package shows nothing but its own modules."""
    shown = {name for name in vars(module) if not name.startswith("_")}
    modules = {name for name in shown if inspect.ismodule(getattr(module, name))}
    assert shown - modules == set(module.__all__)
    for name in modules:
        assert getattr(module, name).__name__.startswith("reuseloader.")


def test_star_import_gives_the_public_names():
    """``from reuseloader import *`` gives what __all__ lists."""
    for module in MODULES:
        names = {}
        exec(f"from {module.__name__} import *", names)
        assert set(names) - {"__builtins__"} == set(module.__all__)


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_every_public_object_has_a_docstring(module, name):
    """Every public object, and every public attribute that a class defines, says what it is."""
    thing = getattr(module, name)
    assert len(inspect.getdoc(thing) or "") > 20
    assert thing.__module__.startswith("reuseloader")
    for attribute, value in vars(thing).items():
        ours = isinstance(value, property) or inspect.isfunction(value)
        if ours and not attribute.startswith("_"):
            assert inspect.getdoc(value), f"{name}.{attribute}"


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_docstrings_name_every_argument(module, name):
    """The docstring of a public class or function mentions each of its arguments."""
    thing = getattr(module, name)
    if isinstance(thing, type) and issubclass(
        thing, (Exception, tuple)
    ):  # they have no constructor of their own
        return
    text = inspect.getdoc(thing)
    for argument in inspect.signature(thing).parameters:
        assert argument in text, f"{name}({argument})"


TOP_LEVEL = """
import json, sys
import torch, numpy.random, xxhash, torch.utils.data
theirs = set(sys.modules)
import reuseloader
ours = set(sys.modules) - theirs
print(json.dumps(sorted({name.partition(".")[0] for name in ours})))
"""


def test_importing_needs_torch_numpy_and_xxhash_alone():
    """``import reuseloader`` brings in no torchdata and no third party but its three."""
    result = python(TOP_LEVEL, flags=("-W", "error"))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1, "importing prints nothing"
    assert result.stderr == ""
    found = set(json.loads(result.stdout))
    assert "reuseloader" in found
    assert "torchdata" not in found
    assert found - {"reuseloader"} <= NEEDED | sys.stdlib_module_names


def sources():
    roots = {Path(path) for module in MODULES for path in module.__path__}
    return sorted(path for root in roots for path in root.glob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_only_nodes_import_torchdata_and_only_one_store_lmdb(path):
    """Every module imports the standard library, its three needs, in nodes torchdata, and lmdb."""
    allowed = NEEDED | sys.stdlib_module_names | {"reuseloader"}
    if path.parent.name == "nodes":
        allowed |= {"torchdata"}
    if path.name.startswith("lmdb_"):
        allowed |= {"lmdb"}
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            imported.add((node.module or "").partition(".")[0])
    assert imported <= allowed


def test_every_module_can_be_imported_alone_and_says_what_it_is():
    """Each module imports, has a docstring, and the typing marker is in the package."""
    for module in MODULES:
        for info in pkgutil.iter_modules(module.__path__, module.__name__ + "."):
            loaded = importlib.import_module(info.name)
            assert loaded.__doc__, info.name
    assert (Path(reuseloader.__file__).parent / "py.typed").exists()


def test_errors_are_what_they_say():
    """The exception tree is the documented one."""
    assert issubclass(reuseloader.ReuseError, Exception)
    assert issubclass(reuseloader.ImpureBuildError, reuseloader.ReuseError)
    assert issubclass(reuseloader.StateMismatchError, reuseloader.ReuseError)
    assert issubclass(reuseloader.StateMismatchError, ValueError)
    assert issubclass(reuseloader.ReuseWarning, UserWarning)
