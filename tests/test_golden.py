"""The frozen values. `python tests/data/make_golden.py` wrote them; after a release it must not."""

import json
from pathlib import Path

import numpy as np
import pytest

from reuseloader.mix import mix
from reuseloader.policy import ReusePolicy

GOLDEN = json.loads(Path(__file__).with_name("data").joinpath("golden.json").read_text())


def test_mix_is_frozen():
    """Every hash is the golden one."""
    assert len(GOLDEN["mix"]) >= 25
    for case in GOLDEN["mix"]:
        assert mix(*case["values"]) == case["hash"], case


def test_keys_are_frozen():
    """Every field of every key is the golden one."""
    assert len(GOLDEN["key"]) >= 250
    for case in GOLDEN["key"]:
        key = case["key"]
        made = ReusePolicy(case["lifetime"], case["seed"]).key(key["index"], key["epoch"])
        assert made._asdict() == key, case
        assert made.use_seed == case["use_seed"], case


@pytest.mark.parametrize("size", sorted({case["size"] for case in GOLDEN["order"]}))
def test_orders_are_frozen(size):
    """Every index of every order is the golden one, position by position and all at once."""
    cases = [case for case in GOLDEN["order"] if case["size"] == size]
    assert len(cases) == 36
    for case in cases:
        policy = ReusePolicy(case["lifetime"], case["seed"], balanced=case["balanced"])
        at, epoch = case["positions"], case["epoch"]
        assert policy.order(np.array(at), epoch, size).tolist() == case["indices"], case
        assert [policy.order(position, epoch, size) for position in at] == case["indices"], case
