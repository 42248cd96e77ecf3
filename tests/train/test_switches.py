"""A real training run for every switch of the constants: the log and the weights show that the switch acts."""

import json
import math

import pytest
import torch

from dinorankclip.commands.train import parse, run
from dinorankclip.models.folder import load_folder
from dinorankclip.train.cost import spending
from tests.train.running import small_pairs

BATCH = 16
QUICK = ["--preset", "scenes", "--budget.batch", str(BATCH), "--budget.epochs", "1", "--budget.threads", "1"]
QUICK += ["--record.no-tensorboard", "--record.log-every", "1", "--reading.workers", "0", "--budget.device", "cpu"]
FUSED = ["--method", "dinorankclip", "--distil.cache", "none"]
TAUGHT = ["--distil.cache", "auto", "--distil.teacher", "random-vit", "--distil.teacher-size", "64"]
LINE = 1  # the second of three lines: its step is the first whose lists have weight, on weights that are all alike


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Train with flags, each set of them once; return the log's lines and the model."""
    place = tmp_path_factory.mktemp("switches")
    pairs = small_pairs(place / "pairs", train=48, val=8)
    done = {}

    def trained(*flags):
        if flags not in done:
            folder = place / f"run-{len(done)}"
            settings, restart, dry = parse([*QUICK, "--data", str(pairs), "--run", str(folder), *flags])
            with pytest.MonkeyPatch.context() as here:
                here.chdir(place)
                run(settings, restart, dry)
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            done[flags] = [line for line in lines if "loss" in line], load_folder(folder), folder
        return done[flags]

    return trained


def ends_alike(one, other, part=""):
    a, b = (model.state_dict() for model in (one, other))
    return all(torch.equal(a[name], b[name]) for name in a if name.startswith(part))


# flags, and by which factor terms of the log change in the first step that has lists
FACTORS = {
    "size": (["--loss.size", "equation"], {"rank_in": 16 * BATCH, "rank_cross": 16 * BATCH, "gate_l1": 16 * BATCH}),
    "L1 plain": (["--loss.gate-l1-size", "plain"], {"rank_in": 1, "rank_cross": 1, "gate_l1": 16 * BATCH}),
    "in": (["--loss.in-weight", "0.5"], {"rank_in": 0.5, "rank_cross": 1, "gate_l1": 1}),
    "cross": (["--loss.cross-weight", "0"], {"rank_in": 1, "rank_cross": 0, "gate_l1": 1}),
    "L1": (["--loss.gate-l1", "1e-3", "1e-2"], {"rank_in": 1, "rank_cross": 1, "gate_l1": 10}),
    "detached scale": (["--loss.detached-scale"], {"rank_in": 1, "rank_cross": 1, "gate_l1": 1}),
}


@pytest.mark.parametrize("switch", FACTORS)
def test_a_switch_of_the_lists_changes_its_term_and_the_weights(train, switch):
    flags, factors = FACTORS[switch]
    usual, before, _ = train("--method", "rank")
    lines, model, folder = train("--method", "rank", *flags)
    assert len(lines) == 3 and json.loads((folder / "config.json").read_text())["loss"]["order"] == 3
    for term, factor in factors.items():
        assert lines[LINE][f"loss/{term}"] == pytest.approx(factor * usual[LINE][f"loss/{term}"], rel=1e-5)
    assert lines[LINE]["loss/contrastive"] == usual[LINE]["loss/contrastive"]
    # In so short a run L1 moves gates alone, which are no part of the model.
    assert switch in ("L1", "L1 plain") or not ends_alike(before, model)


def test_halves_of_the_lists_add_up(train):
    usual = train("--method", "rank")[0]
    halves = [train("--method", "rank", "--loss.direction-weights", *way)[0] for way in (("1", "0"), ("0", "1"))]
    for term in ("rank_in", "rank_cross"):
        parts = [lines[LINE][f"loss/{term}"] for lines in halves]
        assert sum(parts) == pytest.approx(usual[LINE][f"loss/{term}"], rel=1e-5) and min(parts) > 0


def test_gates_start_where_asked(train):
    lines = train("--method", "rank", "--loss.gate-start", "-1", "0.5")[0]
    gates = [lines[LINE][f"gate{order}_{side}"] for order in (2,) for side in ("image", "text")]
    assert gates == pytest.approx([1 / (1 + math.exp(1))] * 2, rel=1e-5)


def test_the_public_epsilon_is_in_the_loss_and_in_the_name_of_the_method(train):
    usual, before, exact = train("--method", "rankclip")
    lines, model, public = train("--method", "rankclip", "--loss.rankclip-eps", "1e-3")
    assert lines[LINE]["loss/rank_in"] > usual[LINE]["loss/rank_in"] and not ends_alike(before, model)
    assert spending(exact).method == "RankCLIP (exact)" and spending(public).method == "RankCLIP (public ε)"


def test_a_fusion_that_starts_at_zero_starts_as_the_trunk(train):
    _, model, folder = train(*FUSED, "--fusion.start", "zero")
    about = json.loads((folder / "fusion.json").read_text())
    for branch in ("image", "text"):
        assert about["start"][branch]["angle"]["max"] == 0 and about["end"][branch]["angle"]["mean"] > 0
        assert about["start"][branch]["gate"]["mean"] == pytest.approx(0.5)
    assert model.fusion.start == "zero" and model.image_fusion.gate.weight.abs().max() > 0
    biased = train(*FUSED, "--fusion.gate-bias", "-2")[2]
    assert json.loads((biased / "fusion.json").read_text())["start"]["image"]["gate"]["mean"] == pytest.approx(
        0.1192029
    )


RATES = {"fusion": "image_fusion.residual.projection.weight", "gates": "image_fusion.gate.bias"}


@pytest.mark.parametrize("rate", RATES)
def test_a_rate_moves_its_part_further(train, rate):
    name, start = RATES[rate], {"gates": -4.0}.get(rate)
    usual, model = (train(*FUSED, *flags)[1].state_dict() for flags in ([], [f"--optim.{rate}-rate", "10"]))
    if start is not None:
        assert (model[name] - start).abs().mean() > 5 * (usual[name] - start).abs().mean()
    else:
        assert (model[name] - usual[name]).abs().max() > 1e-3


def test_the_temperature_has_its_rate(train):
    start = math.log(1 / 0.07)
    usual, fast = (train("--method", "clip", *flags)[0] for flags in ([], ["--optim.temperature-rate", "5"]))
    moved = [lines[LINE]["logit_scale"] - start for lines in (usual, fast)]
    assert abs(moved[0]) > 1e-5 and moved[1] == pytest.approx(5 * moved[0], rel=1e-2)


def test_clipped_apart_distillation_leaves_the_steps_of_clip_alone(train):
    taught = [*TAUGHT, "--distil.weight", "1000"]
    for apart in (True, False):
        flag = ["--optim.clip-apart"] if apart else []
        alone, beside = train("--method", "clip", *flag), train("--method", "clip", *taught, *flag)
        assert ends_alike(alone[1], beside[1], "trunk.") == apart
        norms = [[line["gradient norm"] for line in lines] for lines in (alone[0], beside[0])]
        assert norms[1][0] > 10 * norms[0][0]  # the log has the norm of all parts
