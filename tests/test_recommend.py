import dataclasses
import json

import pytest

from reuseloader.advice import Machine
from reuseloader.measure import Samples
from reuseloader.model import Costs
from reuseloader.recommend import numbers_of_workers, recommended
from reuseloader.text import WIDTH

# builds of 10 ms, stores of 1 ms, hits of 0.5 ms; 1,000 samples in batches of 10
SAMPLES = Samples(Costs(0.01, 0.0005, 0.001), [], stored=1e6, in_memory=2e6)
SCALING = {0: 100.0, 1: 100.0, 2: 200.0, 4: 380.0, 8: 390.0}
ROOM = Machine(cores=8, ranks=1, memory=10**12, free=10**12)


def advice(step, samples=SAMPLES, rates=SCALING, *, pipeline="graph", machine=ROOM, size=1000):
    """Advice, whose text keeps within its width and whose fields make JSON."""
    made = recommended(samples, rates, size, 10, step=step, pipeline=pipeline, machine=machine)
    assert all(len(line) <= WIDTH and line == line.rstrip() for line in str(made).splitlines())
    assert json.loads(json.dumps(dataclasses.asdict(made)))["size"] == size
    return made


def words(made):
    return " ".join(str(made).split())


@pytest.mark.parametrize(
    ("cores", "numbers"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_numbers_of_workers_double_up_to_all_processors(cores, numbers):
    """1, 2, 4 and so on, and the last is as many as there are processors."""
    assert numbers_of_workers(cores) == numbers


@pytest.mark.parametrize(
    ("step", "num_workers", "lifetime"),
    [
        (0.2, 1, 1),  # training of 20 s: one worker builds all in 10 s
        (0.05, 2, 1),  # 5 s: two do
        (0.02, 4, 2),  # 2 s: 11 s / 2 / 3.8 at lifetime 2
        (0.01, 4, 3),  # 1 s: 11 s / 3 / 3.8; eight workers gain nothing
        (0.0071, 8, 4),  # 11 s / 4 / 3.9; four workers would need lifetime 5
    ],
)
def test_the_shortest_lifetime_and_then_the_fewest_workers(step, num_workers, lifetime):
    """Fresh samples come first, workers second."""
    made = advice(step)
    assert (made.lifetime, made.num_workers) == (lifetime, num_workers)
    at = next(at for at in made.predictions if at.lifetime == lifetime)
    assert at.wait == 0
    assert at.seconds == pytest.approx(100 * step)
    assert f"Recommended: lifetime={lifetime}, num_workers={num_workers}." in words(made)
    assert ("nothing to gain from reuse" in words(made)) == (lifetime == 1)


def test_hits_that_are_too_slow_are_the_reason_where_no_lifetime_hides_the_builds():
    """Then it is the shortest lifetime about as quick as any, with the workers that build most."""
    made = advice(0.0001)
    assert made.num_workers == 4  # 8 build less than 5 % more
    assert made.lifetime == 8  # 11 s / 8 / 3.8 = 0.36 s, hits ahead take 0.5 s
    assert "reading stored samples alone takes longer than training" in words(made)
    dear = dataclasses.replace(SAMPLES, costs=Costs(0.01, 0.05, 0.001))
    made = advice(0.0001, dear, pipeline="dataloader")
    assert made.lifetime == 1
    assert "Reuse does not pay here" in words(made)


def test_few_samples_with_slow_builds_get_a_lifetime_beyond_their_number():
    """One build in so many epochs can be hidden, even if there are fewer samples than epochs."""
    slow = dataclasses.replace(SAMPLES, costs=Costs(0.3, 0.0005, 0.001))
    made = advice(0.006, slow, {0: 1 / 0.3, 1: 1 / 0.3, 2: 2 / 0.3}, size=40)
    assert made.lifetime == 251  # 40 * 0.301 s / 2 / L within 24 ms
    assert "alone takes longer" not in words(made)


def test_a_long_lifetime_comes_with_a_word_on_accuracy():
    """It is weighed against what shorter ones cost."""
    made = advice(0.012, rates={0: 100.0, 1: 100.0})
    assert made.lifetime == 10
    assert "Long lifetimes can cost accuracy" in words(made)
    assert "accuracy" not in words(advice(0.02))


def test_without_a_step_no_lifetime_is_recommended():
    """The workers that build most are; epochs are predicted without training."""
    made = advice(None)
    assert (made.lifetime, made.num_workers) == (None, 4)
    assert "Recommended: num_workers=4." in words(made)
    assert "give step" in words(made)
    assert "training waits" not in str(made)
    assert made.predictions[0].seconds == pytest.approx(1000 / 380)


def test_ranks_share_the_samples_and_add_up_their_memory():
    """Each rank has its part of an epoch; disk and memory are those of all."""
    alone, four = (
        advice(0.02, machine=dataclasses.replace(ROOM, ranks=ranks), size=1000 * ranks)
        for ranks in (1, 4)
    )
    assert four.predictions == alone.predictions
    assert four.disk == 4 * alone.disk
    assert [one.memory for one in four.workers] == [4 * one.memory for one in alone.workers]
    assert "shared by 4 ranks, 8 processors each" in str(four)


def test_memory_is_that_of_samples_made_and_not_taken():
    """A DataLoader's workers hold two batches each; a graph its builds and two batches."""
    loader, graph = (advice(0.02, pipeline=pipeline) for pipeline in ("dataloader", "graph"))
    assert [one.memory / 2e6 for one in loader.workers] == [10, 20, 40, 80, 160]
    assert [one.memory / 2e6 for one in graph.workers] == [20, 22, 24, 28, 36]


def test_what_does_not_fit_is_said():
    """A disk too small, or samples that memory will not keep, change what can be expected."""
    assert "The disk has 500 MB free" in words(
        advice(0.02, machine=dataclasses.replace(ROOM, free=5 * 10**8))
    )
    assert "more than the 500 MB of memory" in words(
        advice(0.02, machine=dataclasses.replace(ROOM, memory=5 * 10**8))
    )
    assert "memory:" not in words(advice(0.02))
    assert "free" not in words(advice(0.02))


def test_epoch_0_is_predicted_for_the_recommendation():
    """It builds all, and stores what is used again."""
    made = advice(0.01)
    assert made.lifetime == 3
    assert made.first_epoch == pytest.approx((10 + (1000 - 333) * 0.001) / 3.8)
