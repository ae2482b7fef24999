import pytest
from helpers import Log, temps

from reuseloader.audit import check
from reuseloader.store import DirectoryStore


@pytest.fixture
def log(tmp_path):
    """A build that notes what it builds."""
    return Log(tmp_path)


@pytest.fixture
def store(request, tmp_path):
    """A directory that is yet to be made; in the end all is sound there, but for marked tests."""
    path = tmp_path / "store"
    yield path
    if path.is_dir() and request.node.get_closest_marker("leaves") is None:
        left = temps(path)
        assert not left
        found = check(DirectoryStore(path))
        assert found.clean, found
