import os
import pty
import subprocess
import sys
import termios
from mmap import PAGESIZE

import pytest
from cli_helpers import DAMAGES, FILL, FORMATS, both, fill, fill_lmdb, fill_mixed
from helpers import FORKS, SIZE, leave_temp

from reuseloader import LMDBStore

pytestmark = pytest.mark.filterwarnings(FORKS)


@pytest.mark.parametrize("kind", FILL)
@pytest.mark.parametrize("name", FORMATS)
def test_a_sound_store(name, kind, store, capsys):
    """All samples are read and nothing is found, whatever wrote them."""
    FILL[kind](store, **FORMATS[name])
    code, text, facts = both(capsys, "verify", store)
    assert code == 0
    assert facts["samples"] == SIZE
    assert facts["bytes"] > 0
    assert facts["damaged"] == {}
    assert "5 samples" in text
    assert "all sound" in text


def test_mixed_settings_are_sound(store, capsys):
    """Other generations, lifetimes and fingerprints are no damage."""
    fill_mixed(store)
    assert both(capsys, "verify", store)[0] == 0


@pytest.mark.leaves("damage")
@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_is_named(name, store, capsys):
    """A damaged sample is named with a reason, and exit code 1."""
    fill(store)
    DAMAGES[name][0](store / "00000002.pt")
    code, text, facts = both(capsys, "verify", store)
    assert code == 1
    assert list(facts["damaged"]) == ["00000002.pt"]
    assert f"00000002.pt  {facts['damaged']['00000002.pt']}" in text
    assert "1 damaged" in text
    assert "Errno" not in text


def test_damage_in_lmdb(store, capsys):
    """A sample whose bytes changed is named by its index."""
    lmdb = LMDBStore(store)
    fill(lmdb)
    record = lmdb.read(3)
    record[50] ^= 1
    lmdb.write(3, record)
    lmdb.close()
    code, text, facts = both(capsys, "verify", store)
    assert (code, list(facts["damaged"])) == (1, ["00000003"])
    assert "00000003  the checksum of its payload differs" in text


def test_damage_to_all_of_lmdb(store, capsys):
    """Where the pages that list the samples changed, the store as a whole is named."""
    fill_lmdb(store, size=200)
    data = store / "data.mdb"
    content = data.read_bytes()
    data.write_bytes(content[: 2 * PAGESIZE] + bytes(len(content) - 2 * PAGESIZE))
    code, text, facts = both(capsys, "verify", store)
    assert code == 1
    assert list(facts["damaged"]) == [str(store)]
    assert "damaged as a whole: " in text


@pytest.mark.leaves("damage")
def test_of_many_the_first_are_listed(store, capsys):
    """People see the first 20 damaged ones and a count; programs see all."""
    store.mkdir()
    for index in range(25):
        (store / f"{index:08}.pt").write_bytes(b"rubbish")
    code, text, facts = both(capsys, "verify", store)
    assert code == 1
    assert len(facts["damaged"]) == 25
    assert "00000019.pt" in text
    assert "00000020.pt" not in text
    assert "and 5 more" in text


@pytest.mark.leaves("strays")
def test_temps_and_strays_are_no_damage(store, capsys):
    """Temporary files and strays are mentioned, and nothing is wrong."""
    fill(store)
    (store / "00000004.pt").unlink()
    temp = leave_temp(store, index=4).name
    (store / "notes.txt").write_text("a note")
    code, text, facts = both(capsys, "verify", store)
    assert code == 0
    assert (facts["temps"], facts["strays"]) == ([temp], ["notes.txt"])
    assert "1 temporary file" in text


def test_on_a_terminal_it_shows_how_far_it_is(store):
    """The bar goes to stderr, if that is a terminal, and is gone at the end."""
    fill(store)
    here, there = pty.openpty()
    termios.tcsetwinsize(there, (24, 80))
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "reuseloader", "verify", store],
        stdout=subprocess.PIPE,
        stderr=there,
        timeout=60,
        check=False,
    )
    shown = os.read(here, 100_000)
    os.close(there)
    os.close(here)
    assert result.returncode == 0
    assert b"all sound" in result.stdout
    assert b" samples/s" in shown
