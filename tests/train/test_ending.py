"""A run whose loss left the finite: what it says, and that the command it names works."""

import json
import shlex

import pytest
import torch
from safetensors.torch import load_file

from dinorankclip.commands.train import parse, run
from dinorankclip.config import as_dict
from dinorankclip.models.loaded import BrokenModel
from dinorankclip.report.run_findings import examine_run
from dinorankclip.train import loop
from dinorankclip.train.checkpoints import Diverged, train_command
from dinorankclip.train.step import NonFinite, Updater, Watch
from dinorankclip.types import UserError
from tests.train.running import small_pairs

PLACES = ("host", "device")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs", train=32, val=8)


def flags(pairs, folder, *more):
    """Two steps an epoch, three epochs."""
    quick = ["--budget.batch", "16", "--budget.epochs", "3", "--reading.workers", "0", "--record.no-tensorboard"]
    return [str(word) for word in ["--data", pairs, "--run", folder, *quick, *more]]


def diverging_at(step, monkeypatch):
    """Training whose loss is not finite at this step."""
    ours = loop.backward

    def backward(model, objective, batch, progress, *rest):
        if progress.step == step:
            raise NonFinite(["contrastive"], "on process 0")
        return ours(model, objective, batch, progress, *rest)

    monkeypatch.setattr(loop, "backward", backward)


def diverge(words):
    with pytest.raises(Diverged) as reported:
        run(parse(words)[0], restart=False, dry=False)
    return str(reported.value)


def named_command(text):
    """What the last line says, without `dinorankclip train`."""
    words = shlex.split(text.splitlines()[-1])
    assert words[:2] == ["dinorankclip", "train"]
    return words[2:]


def test_without_a_better_checkpoint_the_run_begins_anew_at_a_lower_rate(pairs, tmp_path):
    words = flags(pairs, tmp_path / "run", "--optim.lr", "1e30")
    reported = diverge(words)
    assert "step-1, may have diverged already; there is no other" in reported
    with pytest.raises(UserError, match="other settings"):
        run(parse([*words, "--optim.lr", "1e-3"])[0], restart=False, dry=False)
    (problem,) = [found for found in examine_run(tmp_path / "run") if found.level == "problem"]
    assert "the run diverged after 1 step: not finite" in problem.what and problem.advice in reported
    settings, restart, _ = parse(named_command(reported))
    assert restart and settings.optim.lr == 1e-3  # the preset's own
    assert run(settings, restart, dry=False)
    assert (tmp_path / "run" / "scores.json").is_file() and not (tmp_path / "run" / "ended.json").exists()


def test_a_host_that_learns_of_it_later_leaves_the_same_checkpoint(pairs, tmp_path, monkeypatch):
    """As on a GPU: the step after the first is not finite, and nobody asks before the end of the epoch."""
    at_once = diverge(flags(pairs, tmp_path / "host", "--optim.lr", "1e30"))

    class Watched(Updater):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.watch = Watch(torch.device("cpu"))

    monkeypatch.setattr("dinorankclip.train.assemble.Updater", Watched)
    later = diverge(flags(pairs, tmp_path / "device", "--optim.lr", "1e30"))
    assert later == at_once.replace(str(tmp_path / "host"), str(tmp_path / "device"))
    states = [load_file(tmp_path / name / "checkpoints" / "step-1" / "training.safetensors") for name in PLACES]
    both = [load_file(tmp_path / name / "checkpoints" / "step-1" / "model.safetensors") for name in PLACES]
    for one, other in (both, states):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_from_the_best_checkpoint_a_new_run_goes_on(pairs, tmp_path, monkeypatch):
    model = ["--model.trunk", "drc-small", "--model.image-size", "32", "--record.keep", "1"]
    with monkeypatch.context() as patches:
        diverging_at(5, patches)
        reported = diverge(flags(pairs, tmp_path / "run", *model))
    kept = {path.name: path.resolve().name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert "step-5, may have diverged already; others" in reported and f"best ({kept['best']})" in reported
    assert {"step-4", "step-5"} <= kept.keys()  # the older one has not made room for a state that may be bad
    settings, restart, _ = parse(named_command(reported))
    assert not restart and settings.run == str(tmp_path / "run-2") and settings.optim.lr == pytest.approx(1e-4)
    assert run(settings, restart, dry=False)
    assert json.loads((tmp_path / "run-2" / "before.json").read_text())  # it did not begin with random weights


def test_a_run_that_took_no_step_leaves_no_folder(pairs, tmp_path, monkeypatch):
    with monkeypatch.context() as patches:
        diverging_at(0, patches)
        reported = diverge(flags(pairs, tmp_path / "run"))
    assert "there is no checkpoint" in reported and list(tmp_path.iterdir()) == []
    settings, restart, _ = parse(named_command(reported))
    assert not restart and run(settings, restart, dry=False)


def test_weights_that_give_no_numbers_at_an_epochs_end_are_not_saved(pairs, tmp_path, monkeypatch):
    scored = loop.score

    def score(state, *rest):
        if state.step == 4:
            raise BrokenModel("the model gives non-finite embedding rows")
        scored(state, *rest)

    monkeypatch.setattr(loop, "score", score)
    reported = diverge(flags(pairs, tmp_path / "run"))
    assert "non-finite embedding rows" in reported and "step-2, may have diverged already" in reported


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--preset", "finetune", "--data", "my photos.csv", "--init", "runs/a", "--optim.clip-norm", "None"],
        ["--method", "dinorankclip", "--distil.cache", "none", "--fusion.no-gate", "--reading.crop-scale", "0.5", "1"],
        ["--preset", "cc3m", "--optim.freeze", "trunk.*", "x", "--record.no-tensorboard", "--seed", "3"],
        ["--method", "rank", "--loss.order", "2", "--loss.no-include-self", "--reading.flip", "--optim.lr", "3e-05"],
    ],
)
def test_the_command_gives_the_same_settings(words):
    settings, *_ = parse(words)
    command = shlex.split(train_command(as_dict(settings), "--restart"))
    assert parse(command[2:])[:2] == (settings, True)
