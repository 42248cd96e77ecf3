"""Time to quality: both sides start alike and score alike, the race ends, the best trial counts."""

from argparse import Namespace

from bench import time_to_quality
from bench.time_to_quality import OPEN_CLIP, OURS, OURS_ADAMW, Trial, as_markdown, best, race
from dinorankclip.data.scenes.make import make_scenes


class Side:
    """Reaches a score of `rate` times its steps, a core-second each."""

    def __init__(self, rate):
        self.rate, self.done = rate, 0

    def take(self, batches, first):
        assert first == self.done and batches == list(range(first, first + len(batches)))
        self.done += len(batches)
        return float(len(batches))

    def score(self, part):
        return self.rate * self.done


class Numbers:
    def stretch(self, first, count):
        return list(range(first, first + count))


def test_trials_go_on_until_the_best_of_their_side_has_ended():
    trials = [Trial(OURS, 1, 1e-3, 10), Trial(OPEN_CLIP, 1, 1e-3, 6), Trial(OPEN_CLIP, 4, 1e-3, 40)]
    trials.append(Trial(OPEN_CLIP, 4, 5e-4, 40))
    sides = {trial.name: Side(rate) for trial, rate in zip(trials, (0.05, 0.01, 0.01, 0.001))}
    race(trials, sides, Numbers(), None, 0.2, every=4)
    assert [trial.reached for trial in trials] == [4.0, None, 20.0, None]
    assert [trial.step for trial in trials] == [4, 6, 20, 20]  # the last one could no longer be the best
    assert best(trials, OPEN_CLIP) is trials[2] and best(trials, OURS_ADAMW) is None
    text = as_markdown(trials, 0.2, "head")
    assert f"| {OURS} | 1 epochs at 0.001 | 4 | 4.0 | 5.00 |" in text
    assert f"| {OPEN_CLIP} | 4 epochs at 0.001 | 20 | 20.0 | 1.00 |" in text
    assert "| no |" in text and "| later than the best |" in text


def test_both_sides_train_and_are_scored_by_one_function(tmp_path):
    none = {"kinds_train": 0, "kinds_test": 0, "fine_train": 0, "fine_test": 0}
    pairs = make_scenes(tmp_path / "scenes", train=32, val=12, test=4, workers=1, **none)
    options = Namespace(
        pairs=str(pairs), seed=0, batch=8, threads=1, trunk="drc-tiny", val=10, our_epochs=[1], adamw_epochs=[1],
        their_epochs=[1], rates=[1e-3], target=2.0, every=3,
    )  # fmt: skip
    trials, images = time_to_quality.run(options)
    assert images == 10 and {trial.side for trial in trials} == {OURS, OURS_ADAMW, OPEN_CLIP}
    assert all(trial.step == trial.steps == 4 and trial.reached is None for trial in trials)
    assert all(0 <= score <= 1 for trial in trials for _, _, score in trial.points)


def test_a_model_scores_alike_on_both_sides(tmp_path):
    """The starting weights, read by our model and by open_clip's of the same weights."""
    from bench.decoded_pairs import HeldOut
    from bench.sides import starting_model
    from bench.time_to_quality import OpenClipSide, _Normalised
    from dinorankclip.data.open_data import open_stored
    from dinorankclip.data.tokens import Tokenizer

    none = {"kinds_train": 0, "kinds_test": 0, "fine_train": 0, "fine_test": 0}
    pairs = make_scenes(tmp_path / "scenes", train=8, val=12, test=4, workers=1, **none)
    model = starting_model("drc-tiny").eval()
    part = HeldOut.of(open_stored(pairs, split="val"), model.image_spec, Tokenizer())
    theirs = OpenClipSide("drc-tiny", model, 8, 10, 1e-3)._trainer.model.eval()
    for ours, other in zip(part.embed(model), part.embed(_Normalised(model, theirs))):
        assert float((ours - other).abs().max()) < 1e-5
