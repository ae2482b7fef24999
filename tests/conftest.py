import pytest
from helpers import Log


@pytest.fixture
def log(tmp_path):
    """A build that notes what it builds."""
    return Log(tmp_path)


@pytest.fixture
def store(tmp_path):
    """A directory that is yet to be made."""
    return tmp_path / "store"
