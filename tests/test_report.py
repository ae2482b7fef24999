import dataclasses
import json

import pytest

from reuseloader.model import AHEAD, CONSUMER, Costs, Pipeline, smallest_hiding, steady_epoch
from reuseloader.report import Report
from reuseloader.stats import PassTimes, Stats
from reuseloader.text import WIDTH

# 8 epochs of 1,000 samples at lifetime 4: builds of 10 ms, stores of 1 ms, hits of 0.5 ms
STATS = Stats(
    hits=5250,
    new_generation=2750,
    bytes_read=5250 * 150_080,
    bytes_written=2500 * 150_080,
    build_seconds=27.5,
    load_seconds=2.625,
    store_seconds=2.75,
)
NEWEST = PassTimes(7, 2.75, 0.75, 1000)
GRAPH = Pipeline(1, AHEAD)


def report(
    stats=STATS,
    newest=NEWEST,
    *,
    size=1000,
    lifetime=4,
    pipeline=GRAPH,
    **changes,
):
    """A report, whose text keeps within its width and whose fields make JSON."""
    made = Report.of(
        dataclasses.replace(stats, **changes),
        newest,
        size=size,
        lifetime=lifetime,
        pipeline=pipeline,
    )
    assert all(len(line) <= WIDTH and line == line.rstrip() for line in str(made).splitlines())
    assert json.loads(json.dumps(dataclasses.asdict(made)))["size"] == size
    return made


def text_of(*args, **options):
    """The report in words, each run of blanks being one."""
    return " ".join(str(report(*args, **options)).split())


def test_an_input_bound_loader_is_told_the_lifetime_that_hides_the_builds():
    """Costs, waiting, verdict, predictions and the smallest lifetime, from the counts alone."""
    made = report()
    assert (made.build, made.hit, made.store, made.finish) == pytest.approx(
        (0.01, 0.0005, 0.001, 0)
    )
    assert made.waited == pytest.approx(0.75 / 2.75)
    assert made.input_bound is True
    assert (made.hit_rate, made.expected_hit_rate) == (5250 / 8000, 0.75)
    assert made.hiding == 6  # 11 s / L beside training of 2 s
    assert [at.lifetime for at in made.predictions] == [1, 2, 4, 6, 8]
    assert [at.seconds for at in made.predictions] == pytest.approx([10, 5.5, 2.75, 2, 2])
    text = text_of()
    assert text.startswith("1,000 samples an epoch, lifetime 4, 1 worker ")
    assert "delivered 8,000 2,750 of them built" in text
    assert "hit rate 65.6 % 75.0 % expected after epoch 0" in text
    assert "a build 10.0 ms storing it 1.00 ms a hit 0.500 ms 150 KB" in text
    assert "Epoch 7 took 2.75 s. Training waited for samples for 750 ms of it (27.3 %)" in text
    assert "input-bound, training would be faster if samples came faster." in text
    assert "4 2.75 s 750 ms 27.3 % 250 now, took 2.75 s" in text
    assert "6 2.00 s 0 s 0.0 % 167 hides the builds" in text
    assert text.endswith("Lifetime 6 is the smallest at which training never waits for a build.")
    assert "finish" not in text


def test_a_loader_that_keeps_up_is_told_so():
    """Waiting for up to 5 % is no verdict of input-bound; the lifetime in use is right."""
    made = report(newest=PassTimes(7, 2.9, 0.1, 1000))
    assert made.input_bound is False
    assert "not input-bound, samples come as fast" in " ".join(str(made).split())
    assert "Lifetime 4 is right" in str(made)


def test_a_lifetime_longer_than_needed_is_named():
    """Above the smallest lifetime that hides the builds, reuse costs freshness alone."""
    made = report(newest=PassTimes(7, 6.0, 0.0, 1000))
    assert made.hiding == 2
    assert "Lifetime 2 is enough" in str(made)
    assert "less fresh" in str(made)


def test_waiting_that_the_costs_do_not_explain_is_said():
    """Where builds should be hidden and training waits all the same, something else takes it."""
    text = text_of(newest=PassTimes(7, 10.0, 4.0, 1000))
    assert "These costs do not explain the waiting" in text
    assert "Lifetime 2 is enough" not in text


def test_behind_a_prefetcher_that_always_waits_it_is_input_bound():
    """There never were enough samples; epochs are predicted from below, and no lifetime named."""
    made = report(newest=PassTimes(7, 6.0, 5.5, 1000, ahead=True))
    assert (made.waited, made.input_bound, made.hiding) == (None, True, None)
    text = " ".join(str(made).split())
    assert "was through with epoch 7 in 6.00 s, and spent 5.50 s of it (91.7 %)" in text
    assert "on getting samples: input-bound, training would be faster" in text
    assert "lifetime an epoch builds 1 10.0 s 1,000 2 5.50 s 500" in text
    assert text.endswith("advise(step=...) predicts with it.")


def test_behind_a_prefetcher_nothing_else_is_claimed():
    """Training may wait for nodes that follow, or have held up the thread: nobody can tell."""
    made = report(newest=PassTimes(7, 6.0, 5.0, 1000, ahead=True))
    assert (made.waited, made.input_bound, made.hiding) == (None, None, None)
    text = " ".join(str(made).split())
    assert "(83.3 %) on getting samples: in the rest it was in nodes that follow, or" in text
    assert "cannot be seen from here" in text
    assert "took" not in text


def test_epoch_0_is_no_example():
    """The first epoch builds all: the verdict says to look again, and it is no yardstick."""
    text = text_of(newest=PassTimes(0, 11.0, 9.0, 1000))
    assert "epoch 0 builds every sample: look again after another" in text
    assert "now, took" not in text
    assert " now " in text
    assert "do not explain" not in text


def test_finish_has_a_line_if_there_is_one():
    """What the cheap last part takes at every use is shown, and predicted with."""
    assert "finish 0.250 ms at every use" in text_of(finish_seconds=2.0)
    slow = report(finish_seconds=24.0)  # 3 s an epoch, ahead of training of 2 s
    assert slow.hiding is None
    assert "with finish, alone takes longer than training: a cheaper finish" in " ".join(
        str(slow).split()
    )
    assert all(at.seconds >= 3 for at in slow.predictions)


UNEXPECTED = {
    "absent": "1 sample built because nothing was stored.",
    "other_stamp": "1 sample built because what was stored had another stamp. Another fingerprint",
    "damaged": "1 sample built because what was stored could not be read. The ReuseWarning",
    "unsaved": "1 sample could not be stored. The first: /data/3.pt: no room",
}


@pytest.mark.parametrize("count", UNEXPECTED)
def test_builds_that_the_rule_did_not_ask_for_are_explained(count):
    """Each cause has its sentence and its advice, and no other cause is mentioned."""
    text = text_of(**{count: 1, "unsaved_reason": "/data/3.pt: no room"})
    for cause, sentence in UNEXPECTED.items():
        assert (sentence in text) == (cause == count)
    assert "because" not in text_of()
    assert "could not" not in text_of()


def test_before_anything_was_delivered_nothing_is_claimed():
    """Without a pass, a build or a hit there is no figure and no advice."""
    made = report(Stats(), None)
    assert made.predictions == ()
    costs = made.build, made.hit, made.store, made.finish
    assert {made.waited, made.input_bound, made.hit_rate, made.hiding, *costs} == {None}
    assert str(made) == (
        "1,000 samples an epoch, lifetime 4, 1 worker\n\n"
        "No sample has been delivered yet.\n\n"
        "No pass has ended yet: whether training waits for samples is not known."
    )


def test_in_the_first_pass_costs_are_shown_and_nothing_is_predicted():
    """Samples that were counted have costs; how long training takes is not known."""
    text = text_of(newest=None)
    assert "a build 10.0 ms" in text
    assert text.endswith("No pass has ended yet: whether training waits for samples is not known.")


def test_at_lifetime_1_longer_ones_are_not_invented():
    """No hit has been timed, so only lifetime 1 is predicted, and advise is named."""
    made = report(hits=0, load_seconds=0.0, bytes_read=0, lifetime=1)
    assert made.store is None
    assert [at.lifetime for at in made.predictions] == [1]
    assert made.hiding is None
    assert "What a hit costs is not known" in str(made)
    assert "advise()" in str(made)
    quick = report(STATS, PassTimes(3, 12.0, 0.0, 1000), hits=0, lifetime=1)
    assert quick.hiding == 1
    assert "Lifetime 1 is right" in str(quick)


def test_without_a_build_or_a_size_nothing_is_predicted():
    """What is lacking is named."""
    assert "cannot be told: no build has been timed" in text_of(new_generation=0)
    assert "a build not known" in text_of(new_generation=0)
    made = text_of(size=None)
    assert made.startswith("lifetime 4, 1 worker ")
    assert "cannot be told: the size is not known" in made


@pytest.mark.parametrize(
    ("pipeline", "load_seconds", "why"),
    [
        (Pipeline(0), 2.625, "Without workers training waits for every build"),
        (Pipeline(0), 5250.0, "Reuse does not pay here: reading a stored sample takes longer"),
        (Pipeline(2), 5250.0, "Reuse does not pay here: reading a stored sample takes longer"),
        (
            Pipeline(1),
            26.25,
            "cheaper hits (format='tensors' or LMDBStore, if not in use) and more workers would",
        ),
        (GRAPH, 26.25, "cheaper hits (format='tensors' or LMDBStore, if not in use) would help"),
        (Pipeline(1, CONSUMER, rereads=True), 2.625, None),
    ],
)
def test_where_no_lifetime_hides_the_builds_the_reason_is_given(pipeline, load_seconds, why):
    """No workers, no gain, or hits that are too slow by themselves."""
    made = report(pipeline=pipeline, load_seconds=load_seconds)
    assert (made.hiding is None) == (why is not None)
    assert (why or "Lifetime 5 is the smallest") in " ".join(str(made).split())


def test_predictions_are_those_of_the_model():
    """The report adds nothing to the model but the counts."""
    made = report(pipeline=Pipeline(2))
    costs = made.build, made.hit, made.store, made.finish
    assert None not in costs
    setup = {"training": 2.0, "size": 1000}
    of_model = Costs(*costs)
    assert made.hiding == smallest_hiding(of_model, made.pipeline, **setup)
    assert made.predictions == tuple(
        steady_epoch(of_model, made.pipeline, lifetime=at.lifetime, **setup)
        for at in made.predictions
    )
