import os

import pytest
from cli_helpers import DAMAGES, FILL, FORMATS, both, fill, fill_mixed
from helpers import BOOK, FORKS, SIZE, leave_temp, sample_files

from reuseloader.cli.words import fingerprint_text
from reuseloader.record import TRAILER_SIZE, fingerprint_digest, read_stamp, seal
from reuseloader.store import DirectoryStore

pytestmark = pytest.mark.filterwarnings(FORKS)

NONE, OTHER = (fingerprint_digest(text).hex() for text in ("", "other"))


@pytest.mark.parametrize("kind", FILL)
@pytest.mark.parametrize("name", FORMATS)
def test_a_sound_store(name, kind, store, capsys):
    """Samples, sizes, format, lifetime, generations and the last run's word are said."""
    FILL[kind](store, **FORMATS[name])
    code, text, facts = both(capsys, "stat", store)
    assert code == 0
    assert (facts["path"], facts["store"]) == (str(store), kind)
    assert (facts["samples"], facts["first_index"], facts["last_index"]) == (SIZE, 0, SIZE - 1)
    (group,) = facts["settings"]
    assert (group["format"], group["lifetime"]) == (name, 10**9)
    assert (group["fingerprint"], group["samples"]) == (NONE, SIZE)
    assert group["generations"] == {"0": SIZE}
    sizes = facts["sample_bytes"]
    assert TRAILER_SIZE < sizes["min"] <= sizes["mean"] <= sizes["max"]
    assert facts["bytes"] == group["bytes"] == sizes["mean"] * SIZE
    assert facts["last_run"] == {
        "size": SIZE,
        "stored": SIZE,
        "build": "sample_of",
        "fingerprint": NONE,
    }
    assert (facts["damaged_trailers"], facts["temps"], facts["strays"]) == ({}, [], [])
    assert "5 samples" in text
    assert f"{name}, lifetime 1,000,000,000, fingerprint none" in text
    assert "generation  0  5" in text
    assert "build sample_of" in text


def test_bytes_are_those_of_the_files(store, capsys):
    """Sizes count whole files, trailers included."""
    fill(store)
    sizes = [(store / name).stat().st_size for name in sample_files(store)]
    _, _, facts = both(capsys, "stat", store)
    assert facts["bytes"] == sum(sizes)
    assert facts["sample_bytes"] == {"min": min(sizes), "mean": sum(sizes) / 5, "max": max(sizes)}


@pytest.mark.parametrize("kind", FILL)
def test_settings_are_told_apart(kind, store, capsys):
    """Each lifetime and fingerprint is a group of its own, the largest first, with generations."""
    fill_mixed(store, kind)
    code, text, facts = both(capsys, "stat", store)
    assert code == 0
    found = [
        (group["lifetime"], group["fingerprint"], group["generations"])
        for group in facts["settings"]
    ]
    # at epoch 1 index 2 is used for the last time, and not stored; 0 and 1 are of the other run
    assert found == [(7, OTHER, {"0": 2}), (4, NONE, {"0": 1, "1": 1})]
    assert facts["last_run"]["size"] == 2
    assert facts["last_run"]["stored"] == 2
    assert f"lifetime 7, fingerprint {OTHER}: 2 samples" in text


@pytest.mark.leaves("damage")
@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_ends_are_counted(name, store, capsys):
    """What the end of a file tells is told, and exit code 1; what is before it is not looked at."""
    damage, at_the_end = DAMAGES[name]
    fill(store)
    damage(store / "00000002.pt")
    code, text, facts = both(capsys, "stat", store)
    assert code == int(at_the_end)
    assert list(facts["damaged_trailers"]) == ["00000002.pt"] * at_the_end
    assert ("00000002.pt" in text) == at_the_end
    assert facts["samples"] == SIZE
    assert sum(group["samples"] for group in facts["settings"]) == SIZE - at_the_end


@pytest.mark.leaves("strays")
def test_temps_and_strays(store, capsys):
    """Temporary files are told from strays, and those of the living from those of the dead."""
    fill(store)
    (store / "00000001.pt").unlink()
    (store / "00000004.pt").unlink()
    dead = leave_temp(store, index=1).name
    first, second, owner, end = dead.split(".")
    host, _, rest = owner.split("-", 2)
    alive = f"{first}.{second}.{host}-{os.getpid()}-0-{rest.partition('-')[2]}.{end}"
    elsewhere = f"00000001.pt.{'0' * 8 if host != '0' * 8 else '1' * 8}-1-1-0.tmp"
    for name in (alive, elsewhere):
        (store / name).write_bytes(b"")
    (store / f"00000003.{second}.{owner}.{end}").symlink_to("nowhere")
    (store / "notes.txt").write_text("a note")
    code, text, facts = both(capsys, "stat", store)
    assert code == 0
    found = {temp["name"]: temp["owner_lives"] for temp in facts["temps"]}
    assert found == {dead: False, alive: True, elsewhere: True}
    assert facts["strays"] == [f"00000003.{second}.{owner}.{end}", "notes.txt"]
    assert f"{dead}  abandoned" in text
    assert f"{alive}  in use" in text
    assert facts["last_run"]["stored"] == SIZE - 2


@pytest.mark.leaves("strays")
def test_of_many_the_first_are_listed(store, capsys):
    """People see the first 20 and a count; programs see all."""
    fill(store)
    for number in range(25):
        (store / f"stray{number:02}").write_bytes(b"")
    _, text, facts = both(capsys, "stat", store)
    assert len(facts["strays"]) == 25
    assert "stray19" in text
    assert "stray20" not in text
    assert "and 5 more" in text


@pytest.mark.parametrize(
    "book",
    [
        "",
        "[]",
        "nonsense",
        '{"size": "many", "build": ["\\n"], "fingerprint": 3}',
        '{"size": null}',
    ],
)
def test_any_bookkeeping_file_will_do(book, store, capsys):
    """A book that says nothing, or something odd, spoils nothing."""
    fill(store)
    (store / BOOK).write_text(book)
    code, text, facts = both(capsys, "stat", store)
    assert (code, facts["samples"]) == (0, SIZE)
    assert "last run" in text
    assert facts["last_run"] is None or facts["last_run"]["size"] is None


def test_what_cannot_even_be_measured(store, capsys):
    """A store with nothing but a damaged sample of no size has no sizes."""
    store.mkdir()
    (store / "00000000.pt").symlink_to("nowhere")
    code, text, facts = both(capsys, "stat", store)
    assert code == 1
    assert facts["sample_bytes"] == {"min": None, "mean": None, "max": None}
    assert facts["damaged_trailers"] == {"00000000.pt": "a link to nothing"}
    assert "1 sample," in text
    (store / "00000000.pt").unlink()


def test_of_many_generations_the_newest_are_shown(store, capsys):
    """People see the 20 newest generations and a count of the rest; programs see all."""
    records = DirectoryStore(store)
    fill(store, size=1)
    sealed = bytes(records.read(0))
    stamp = read_stamp(sealed)
    for index in range(30):
        payload = sealed[:-TRAILER_SIZE]
        records.write(index, seal(payload, stamp._replace(generation=index)))
    _, text, facts = both(capsys, "stat", store)
    assert len(facts["settings"][0]["generations"]) == 30
    assert "10 older generations" in text
    assert "generation  29" in text
    assert "generation   9" not in text


def test_fingerprints_are_hexadecimal():
    """That of the empty text is none."""
    assert fingerprint_text(NONE) == "none"
    assert fingerprint_text(OTHER) == OTHER
