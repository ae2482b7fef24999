import signal
from importlib import metadata

import pytest
from helpers import Log
from nodes_helpers import no_worker_is_left

from reuseloader.audit import check
from reuseloader.store import DirectoryStore

SHOWN = ("torch", "torchdata", "numpy", "lightning", "accelerate", "transformers", "pytorch-ignite")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # in the background of a script; what is started here is to be interrupted all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header():
    """The versions at work, of the frameworks too where they are installed."""
    installed = {dist.name: dist.version for dist in metadata.distributions()}
    return ", ".join(f"{name} {installed[name]}" for name in SHOWN if name in installed)


@pytest.fixture
def log(tmp_path):
    """A build that notes what it builds."""
    return Log(tmp_path)


@pytest.fixture
def store(request, tmp_path):
    """A directory that is yet to be made; the start after a test, unless marked, finds it sound."""
    path = tmp_path / "store"
    yield path
    of_files = path.is_dir() and not (path / "data.mdb").exists()
    if of_files and request.node.get_closest_marker("leaves") is None:
        found = check(DirectoryStore(path))
        assert found.clean, found


@pytest.fixture
def no_worker_left():
    """After a test, the graphs that went out of use have no process and no thread."""
    yield
    no_worker_is_left()
