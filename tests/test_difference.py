import copy

import impure
import numpy as np
import pytest
import torch
from impure import Boxes, Plain, Point, Slots, Slotted

from reuseloader import ReusePolicy
from reuseloader.codec import FileCodec
from reuseloader.contract import first_breach
from reuseloader.difference import first_difference, in_words

CODEC = FileCodec()
KEY = ReusePolicy(4).key(3, 0)
ONE = np.arange(6.0).reshape(2, 3)
OTHER = ONE + np.array([[0, 0, 0], [0, 0, 0.5]])
SAME = Plain(1)
FLOAT8 = torch.ones(2).to(torch.float8_e5m2), torch.tensor([1.0, 2.0]).to(torch.float8_e5m2)


@pytest.mark.parametrize("build", [impure.tensors, impure.arrays, impure.ragged, impure.objects])
def test_copies_are_equal(build):
    """Whatever a sample is made of, it equals itself, another of its key, and what is stored."""
    sample = build(KEY)
    assert first_difference(sample, sample) is None
    assert first_difference(sample, build(KEY)) is None
    assert first_difference(sample, CODEC.decode(CODEC.encode(sample))) is None


DIFFERENT = [
    # one, other, place, what is there
    (1, 2, "sample", ("1", "2")),
    (1, True, "sample", ("1, a int,", "True, a bool,")),
    (1, 1.0, "sample", ("1, a int,", "1.0, a float,")),
    ("a", b"a", "sample", ("'a', a str,", "b'a', a bytes,")),
    (0.0, -0.0, "sample", ("0.0", "-0.0")),
    (1.0, float("nan"), "sample", ("1.0", "nan")),
    (1j, 2j, "sample", ("1j", "2j")),
    ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "sample['a'][1]['b']", ("2", "3")),
    ({"a": 1}, {}, "sample['a']", ("1", "absent")),
    ({}, {"a": 1}, "sample['a']", ("absent", "1")),
    ([1], [1, 2], "sample", ("of length 1", "of length 2")),
    ((1, 2), [1, 2], "sample", ("(1, 2), a tuple,", "[1, 2], a list,")),
    (Point(1, 2), (1, 2), "sample", ("Point(x=1, y=2), a Point,", "(1, 2), a tuple,")),
    ({1, 2}, {1, 3}, "sample", ("with {2}", "with {3}")),
    (ONE, OTHER, "sample[1, 2]", ("5.0", "5.5")),
    (ONE, OTHER.astype("f4"), "sample", ("of dtype float64", "of dtype float32")),
    (ONE, ONE.astype(">f8"), "sample", ("of dtype float64", "of dtype >f8")),
    (ONE, ONE[:1], "sample", ("of shape (2, 3)", "of shape (1, 3)")),
    (ONE, torch.from_numpy(ONE), "sample", None),
    (torch.tensor(1), torch.tensor(2), "sample", ("1", "2")),
    (torch.zeros(2), torch.tensor([0, -0.0]), "sample[1]", ("0.0", "-0.0")),
    (torch.zeros(2).bfloat16(), torch.ones(2).bfloat16(), "sample[0]", ("0.0", "1.0")),
    (FLOAT8[0], FLOAT8[1], "sample[1]", ("1.0", "2.0")),
    (torch.zeros(2, 2), torch.zeros(2, 2).to_sparse(), "sample", None),
    (torch.eye(2).to_sparse(), torch.ones(2, 2).to_sparse(), "sample[0, 1]", ("0.0", "1.0")),
    (np.float32(1), 1.0, "sample", None),
    (np.float32(1), np.float32(2), "sample", ("1.0", "2.0")),
    (np.array(["a", "b"]), np.array(["a", "c"]), "sample[1]", ("'b'", "'c'")),
    (np.array([None, {"a": 1}]), np.array([None, {"a": 2}]), "sample[1]['a']", ("1", "2")),
    (
        np.zeros(2, [("x", "i4"), ("y", "f4")]),
        np.array([(0, 0), (0, 1)], [("x", "i4"), ("y", "f4")]),
        "sample['y'][1]",
        ("0.0", "1.0"),
    ),
    (
        np.ma.array([1, 2], mask=[False, True]),
        np.ma.array([1, 2], mask=[False, False]),
        "sample.mask[1]",
        ("True", "False"),
    ),
    (Boxes(ONE, []), Boxes(ONE, [1]), "sample.labels", ("of length 0", "of length 1")),
    (Plain(Plain(1)), Plain(Plain(2)), "sample.value.value", ("1", "2")),
    (Slots([1]), Slots([2]), "sample.value[0]", ("1", "2")),
    (Slotted(1), Slotted(2), None, None),
    (np.random.default_rng(0), np.random.default_rng(1), None, None),
    (impure.tensors, impure.arrays, "sample", ("of name impure.tensors", "of name impure.arrays")),
    (dict, list, "sample", ("of name builtins.dict", "of name builtins.list")),
]


@pytest.mark.parametrize(("one", "other", "place", "found"), DIFFERENT)
def test_the_first_place_is_named(one, other, place, found):
    """With what is there on both sides; and the same place the other way round."""
    difference = first_difference(one, other)
    if place is not None:
        assert difference.place == place
        assert first_difference(other, one).place == place
    if found is not None:
        assert difference[1:3] == found
    assert difference.place.startswith("sample")


def test_how_much_differs_is_said():
    """How many elements, and when a value is equal but its bits are not."""
    assert first_difference(ONE, ONE + 1).note == "6 of 6 elements differ"
    assert first_difference(0.0, -0.0).note == "equal in value, not in bits"
    difference = first_difference({"x": torch.zeros(4)}, {"x": torch.tensor([0, 0, -0.0, 0])})
    assert difference.between("here", "there") == (
        "sample['x'][2] is 0.0 here, -0.0 there (equal in value, not in bits; 1 of 4 elements "
        "differ)"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (float("nan"), -float("nan")),
        (np.array([np.nan]), np.array([np.uint64(0xFFF8000000000001)]).view(float)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.rand(3, 4).t(), None),
        ([SAME, SAME], [Plain(1), Plain(1)]),
        (np.asfortranarray(ONE), np.ascontiguousarray(ONE)),
        ({torch.ones(1)}, {torch.ones(1)}),
        (object(), object()),
    ],
)
def test_what_does_not_survive_reuse_does_not_count(one, other):
    """The bits of NaN, the order of keys, strides, sharing."""
    assert first_difference(one, other if other is not None else one.contiguous()) is None


class Odd:
    """Raises at whatever it is asked."""

    def __init__(self, number):
        self.__dict__["number"] = number

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __eq__(self, other):
        raise RuntimeError("eq")

    def __repr__(self):
        raise RuntimeError("repr")

    def __reduce_ex__(self, protocol):
        raise RuntimeError("reduce")

    __hash__ = None


class OddMapping(dict):
    def items(self):
        raise RuntimeError("items")


def test_odd_objects_do_no_harm():
    """What raises at everything is compared by what can be had."""
    assert first_difference(Odd(1), Odd(1)) is None
    assert first_difference([Odd(1)], [Odd(2)]).place == "sample[0].number"
    assert first_difference(OddMapping(a=1), OddMapping(a=1)) is None
    assert in_words(Odd(1))
    assert len(in_words("long" * 1000)) < 100


def test_a_sample_may_contain_itself():
    """At any place, and be very deep."""
    one, other = [1], [1]
    one.append({"again": one})
    other.append({"again": other})
    assert first_difference(one, other) is None
    assert first_difference(one, [*other, 2]).place == "sample"
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert first_difference(deep, [copy.copy(deep[0])]) is None


# --- the contract ---------------------------------------------------------------------------------

AGREEING = [
    (torch.zeros(3, 4), torch.ones(3, 5)),
    (np.zeros(0), np.zeros(9)),
    (np.array(["a"]), np.array(["abc"])),
    ([1, "a"], []),
    ([torch.zeros(1)], [torch.zeros(2), torch.zeros(3)]),
    (["a", {"b": 1}], [1]),
    (None, torch.zeros(1)),
    ({"caption": "a"}, {"caption": None}),
    (Plain(1), Plain("text")),
    (Plain(1), Slots(1)),
    (b"a", b"bc"),
    (Boxes(torch.zeros(0, 4), []), Boxes(torch.zeros(3, 4), [1])),
]


@pytest.mark.parametrize(("one", "other"), AGREEING)
def test_what_may_differ_between_indices(one, other):
    """Extents, what lists hold, None, and objects."""
    for sample, other_sample in (one, other), ((one, [1]), (other, [])), ({"x": one}, {"x": other}):
        assert first_breach(sample, other_sample) is None
        assert first_breach(other_sample, sample) is None


BREACHES = [
    ({"a": 1}, {"a": 1, "b": 2}, "sample['b']", ("absent", "2")),
    ({"a": {"c": 1}}, {"a": {}}, "sample['a']['c']", ("1", "absent")),
    ((1, 2), (1,), "sample", ("of length 2", "of length 1")),
    ((1, 2), [1, 2], "sample", ("(1, 2), a tuple,", "[1, 2], a list,")),
    ((1, 2), (1, 0.5), "sample[1]", ("2, a int,", "0.5, a float,")),
    (1, np.int64(1), "sample", None),
    (np.float32(1), np.float64(1), "sample", None),
    (torch.zeros(1), np.zeros(1), "sample", None),
    (torch.zeros(1), 0.0, "sample", None),
    (torch.zeros(1), torch.zeros(1).double(), "sample", None),
    (torch.zeros(0), torch.zeros(2, 4), "sample", ("of ndim 1", "of ndim 2")),
    (np.zeros(1, "i4"), np.zeros(1, "i8"), "sample", ("of dtype int32", "of dtype int64")),
    ([torch.zeros(1)], [torch.zeros(1, 1)], "sample[0]", None),
    (Boxes(np.zeros(1), []), Boxes(np.zeros(1, int), []), "sample.boxes", None),
    (Point(1, 2), (1, 2), "sample", None),
]


@pytest.mark.parametrize(("one", "other", "place", "found"), BREACHES)
def test_what_must_agree_between_indices(one, other, place, found):
    """Names, nesting, types, dtypes and numbers of dimensions."""
    breach = first_breach(one, other)
    assert breach.place == place == first_breach(other, one).place
    if found is not None:
        assert breach[1:3] == found
