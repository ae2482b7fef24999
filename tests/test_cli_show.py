import numpy as np
import pytest
import torch
from cli_helpers import DAMAGES, FILL, FORMATS, assert_error, both, cli, fill
from helpers import FOREVER, FORKS, SIZE, Labelled, Thing, sample_of

from reuseloader import IndexEpoch, ReuseDataset
from reuseloader.codec import FileCodec
from reuseloader.record import TRAILER_SIZE, Stamp, fingerprint_digest, read_stamp, seal
from reuseloader.store import DirectoryStore
from reuseloader.tensors import TensorsCodec

pytestmark = pytest.mark.filterwarnings(FORKS)


def odd_sample(key):
    """A sample of the kinds of values that are not in every sample."""
    return {
        "bf": torch.tensor([1.0, 3.0]).bfloat16(),
        "nan": torch.tensor([1.0, float("nan"), float("inf"), 3.0]),
        "all nan": np.full(2, np.nan),
        "wide": torch.tensor([1, 2**62 + 1]),
        "flags": torch.tensor([True, False]),
        "complex": torch.ones(2, dtype=torch.complex64),
        "u16": torch.tensor([5], dtype=torch.uint16),
        "empty": torch.zeros(0, 3),
        "words": np.array(["a", "bc"]),
        "big endian": np.arange(3, dtype=">i4"),
        "text": "x" * 100,
        "bytes": b"123",
        "nothing": None,
        "inf": float("inf"),
        "nested": [({"a": 1},)],
    }


def parts_of(facts):
    return {part["place"]: part for part in facts["sample"]}


@pytest.mark.parametrize("kind", FILL)
@pytest.mark.parametrize("name", FORMATS)
def test_the_stamp_and_the_state(name, kind, store, capsys):
    """What the trailer says, its place and whether the record is sound are told of any record."""
    FILL[kind](store, fingerprint="mine", **FORMATS[name])
    code, text, facts = both(capsys, "show", store, 3)
    key = FOREVER.key(3, 0)
    assert code == 0
    assert (facts["index"], facts["trouble"]) == (3, None)
    assert facts["stamp"]["format"] == name
    assert facts["stamp"]["generation"] == key.generation
    assert facts["stamp"]["seed"] == key.seed
    assert facts["stamp"]["lifetime"] == 10**9
    assert facts["stamp"]["fingerprint"] == fingerprint_digest("mine").hex()
    assert facts["payload_bytes"] == facts["bytes"] - TRAILER_SIZE > 0
    place = {"directory": f"{store}/00000003.pt", "lmdb": f"{store}/data.mdb, key 3"}[kind]
    assert facts["place"] == place
    assert text.startswith(f"{place}\nsound")
    for word in (name, "lifetime 1,000,000,000", str(key.seed), facts["stamp"]["fingerprint"]):
        assert word in text


def test_a_sample_of_tensors_is_summarised(store, capsys):
    """Structure, shapes, dtypes and ranges of a sample of this format are told."""
    fill(store, format="tensors")
    _, text, facts = both(capsys, "show", store, 2)
    sample = sample_of(FOREVER.key(2, 0))
    parts = parts_of(facts)
    assert list(parts) == ["sample", *(f"sample[{name!r}]" for name in sample)]
    assert parts["sample"] == {"place": "sample", "type": "dict", "length": 7}
    assert parts["sample['index']"] == {"place": "sample['index']", "type": "int", "value": 2}
    tensor = parts["sample['tensor']"]
    assert (tensor["type"], tensor["dtype"], tensor["shape"]) == ("tensor", "float32", [3])
    assert tensor["min"] == sample["tensor"].min().item()
    assert tensor["max"] == sample["tensor"].max().item()
    assert tensor["mean"] == pytest.approx(sample["tensor"].mean().item())
    assert parts["sample['array']"]["shape"] == [2, 2]
    assert "sample['tensor']      tensor  float32 [3]  min " in text


@pytest.mark.parametrize("argv", [["tensors"], ["torch", "--unpickle"]], ids=lambda argv: argv[0])
def test_all_kinds_of_values_are_summarised(argv, store, capsys):
    """Every kind of value has a line; what is not finite is counted, and is in no mean."""
    name, *unpickle = argv
    with ReuseDataset(odd_sample, 1, store, FOREVER, format=name) as dataset:
        dataset[IndexEpoch(0, 0)]
    code, text, facts = both(capsys, "show", store, 0, *unpickle)
    parts = {place.removeprefix("sample"): part for place, part in parts_of(facts).items()}
    assert code == 0
    assert (parts["['bf']"]["dtype"], parts["['bf']"]["mean"]) == ("bfloat16", 2)
    nan = parts["['nan']"]
    assert (nan["min"], nan["max"], nan["mean"], nan["not_finite"]) == (1, 3, 2, 2)
    assert parts["['all nan']"]["not_finite"] == 2
    assert "mean" not in parts["['all nan']"]
    assert parts["['wide']"]["max"] == 2**62 + 1
    assert parts["['flags']"]["mean"] == 0.5
    assert parts["['u16']"]["max"] == 5
    assert parts["['big endian']"]["max"] == 2
    assert parts["['inf']"]["value"] == "inf"
    assert parts["['nothing']"] == {"place": "sample['nothing']", "type": "NoneType", "value": None}
    assert parts["['text']"]["length"] == 100
    assert parts["['nested'][0][0]['a']"]["value"] == 1
    assert parts["['empty']"]["shape"] == [0, 3]
    assert "(2 not finite)" in text
    assert "x" * 61 not in text


class Trap:
    """Loading it is noticed."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


def test_nothing_is_unpickled_unasked(store, capsys):
    """Of the default format the parts of the file are listed, and no code of it is run."""
    with ReuseDataset(lambda key: [Trap(), torch.zeros(300)], 1, store, FOREVER) as dataset:
        dataset[IndexEpoch(0, 0)]
    code, text, facts = both(capsys, "show", store, 0)
    assert code == 0
    assert 1200 in facts["members"].values()
    assert "data.pkl" in text
    assert "--unpickle" in text
    assert "sample" not in facts
    with pytest.raises(pytest.fail.Exception):
        cli(capsys, "show", store, 0, "--unpickle")


def test_unpickled_objects_are_walked_into(store, capsys):
    """With --unpickle the parts of any object are summarised."""

    def build(key):
        return Labelled(torch.ones(2), Thing({1, 2}))

    with ReuseDataset(build, 1, store, FOREVER) as dataset:
        dataset[IndexEpoch(0, 0)]
    code, _, facts = both(capsys, "show", store, 0, "--unpickle")
    assert code == 0
    assert parts_of(facts)["sample.image"]["mean"] == 1
    assert parts_of(facts)["sample.label.value"] == {
        "place": "sample.label.value",
        "type": "set",
        "length": 2,
    }


def test_samples_without_end_are_cut(store, capsys):
    """A sample that contains itself, and one of very many parts, have an end all the same."""

    def build(key):
        endless = []
        endless.append(endless)
        return [endless, list(range(5000))]

    with ReuseDataset(build, 1, store, FOREVER) as dataset:
        dataset[IndexEpoch(0, 0)]
    _, _, facts = both(capsys, "show", store, 0, "--unpickle")
    assert 1000 < len(facts["sample"]) < 1100


@pytest.mark.leaves("damage")
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_told(name, store, capsys):
    """A damaged record has exit code 1, its reason, and of its stamp what is still sound."""
    fill(store)
    DAMAGES[name][0](store / "00000002.pt")
    code, text, facts = both(capsys, "show", store, 2)
    assert code == 1
    assert facts["trouble"].startswith("damaged: ")
    assert facts["trouble"] in text
    assert ("stamp" in facts) == (name == "flipped byte")
    assert "members" not in facts


@pytest.mark.parametrize("codec", [FileCodec(), TensorsCodec()])
def test_a_sound_record_of_something_else(codec, store, capsys):
    """A record whose payload is not of its format is told, without a traceback."""
    records = DirectoryStore(store)
    records.write(0, seal(b"no sample at all", Stamp(codec.id, 0, 0, 4, bytes(16))))
    flags = ["--unpickle"] if codec.id == FileCodec().id else []
    code, text, facts = both(capsys, "show", store, 0, *flags)
    assert code == 1
    assert facts["trouble"].startswith("cannot be loaded: ")
    assert "cannot be loaded: " in text
    assert read_stamp(records.read(0)).lifetime == 4


def test_a_pickle_that_is_no_zip_file_has_no_members(store, capsys):
    """What the default format's `save` did not write as a zip file is still shown."""
    DirectoryStore(store).write(0, seal(b"no zip file", Stamp(FileCodec().id, 0, 0, 4, bytes(16))))
    code, _, facts = both(capsys, "show", store, 0)
    assert (code, facts["members"]) == (0, {})


def test_what_cannot_be_shown_is_an_error(store, capsys):
    """No such sample, or one that only its own load function can read, is one line."""
    fill(store, save=lambda sample, file: file.write(b"own"), load=lambda file: file.read())
    assert_error(cli(capsys, "show", store, SIZE), f"index {SIZE}", store)
    assert_error(cli(capsys, "show", store, 0, "--unpickle"), "unknown (custom save)")
