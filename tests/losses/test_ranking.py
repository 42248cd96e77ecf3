"""Lists, options and stages of the ranking loss, and using it alone."""

import math
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.config import LossSettings
from dinorankclip.losses import Objective, RankingLoss, ranking
from dinorankclip.losses.plackett_luce import plackett_luce_nll
from dinorankclip.types import Embeddings, Progress

ROOT = Path(__file__).parents[2]


def batch(pairs=12, dim=8, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    image = torch.randn(pairs, dim, dtype=dtype, generator=draw)
    return image, image + torch.randn(pairs, dim, dtype=dtype, generator=draw)


def value_and_gradient(loss, image, text, scale=20.0):
    image, text = image.clone().requires_grad_(), text.clone().requires_grad_()
    total = loss(image, text, torch.tensor(scale, dtype=image.dtype)).total
    return total.detach(), *torch.autograd.grad(total, (image, text))


def late(loss):
    loss.set_progress(640, 640, 64)
    return loss.double()


def test_zero_valued_heads_through_the_full_path_are_order_1():
    first, fifth = late(RankingLoss(8, 1)), late(RankingLoss(8, 5, 4))
    with torch.no_grad():
        for heads in fifth.transitions.values():
            for r in ("2", "3", "4", "5"):
                heads.heads[r].query.weight.zero_()
    l1 = fifth(*batch(), 20.0).terms["gate_l1"]
    for a, b in zip(value_and_gradient(first, *batch()), value_and_gradient(fifth, *batch())):
        assert (a - (b - l1.detach() if b.ndim == 0 else b)).abs().max() < 1e-12


def test_before_every_stage_order_3_is_order_1_bit_for_bit():
    first, third = RankingLoss(8, 1), RankingLoss(8, 3)
    for loss in (first, third):
        loss.set_progress(20, 640, 64)
    for a, b in zip(*(value_and_gradient(loss, *batch(dtype=torch.float32)) for loss in (first, third))):
        assert torch.equal(a, b)


def test_lists_that_cost_more_than_a_model_are_warned_of_once(monkeypatch):
    monkeypatch.setattr(ranking, "LONG_LISTS", 40**3 - 1)
    image, text = batch(40)
    loss = RankingLoss(8, 2).double()
    with pytest.warns(UserWarning, match=r"40 positions of 40 pairs at order 2 .* list_length=32"):
        loss(image, text, 20.0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for quiet in (loss, RankingLoss(8, 1).double(), RankingLoss(8, 2, list_length=32).double()):
            quiet(image, text, 20.0)
        RankingLoss(8, 2).double()(image[:39], text[:39], 20.0)
    assert [str(warning.message) for warning in seen] == []


def test_order_0_is_a_constant():
    image, text = batch()
    value = RankingLoss(8, 0)(image.requires_grad_(), text, 20.0).total
    assert not value.requires_grad and value == RankingLoss(8, 0)(text, text, 5.0).total


@pytest.mark.parametrize(
    ("image", "text", "says"),
    [
        ((6, 8), (5, 8), r"of the same pairs, \[N, 8\] each; not \[6, 8\] and \[5, 8\]"),
        ((6, 8), (6, 9), r"not \[6, 8\] and \[6, 9\]"),
        ((6, 9), (6, 9), r"made for embeddings \[N, 8\], not \[6, 9\]"),
        ((8,), (8,), r"made for embeddings \[N, 8\], not \[8\]"),
    ],
)
@pytest.mark.parametrize("order", [0, 1, 3])
def test_embeddings_that_do_not_fit_are_told(image, text, says, order):
    with pytest.raises(ValueError, match=says):
        RankingLoss(8, order)(torch.randn(image), torch.randn(text), 20.0)


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_without_self_by_hand(backend):
    """Item i leaves row i by index, even when a duplicate caption sorts before it."""
    image, text = batch()
    text[3] = text[1]
    loss = late(RankingLoss(8, 1, include_self=False, backend=backend))
    v, t = F.normalize(image, dim=1), F.normalize(text, dim=1)
    nll = 0.0
    for prediction, reference in ((v @ t.T, t @ v.T), (t @ v.T, v @ t.T), (v @ v.T, t @ t.T), (t @ t.T, v @ v.T)):
        for i in range(12):
            others = [j for j in range(12) if j != i]
            theta = 20.0 * prediction[i, others]
            order = reference[i, others].sort(descending=True, stable=True).indices
            nll += plackett_luce_nll(theta[None], order[None]).item() / 12
    total, *gradients = value_and_gradient(loss, image, text)
    assert total.item() == pytest.approx(2 * nll / 2 / 16 / 11, abs=1e-12)
    assert all(torch.isfinite(g).all() for g in gradients)


def test_list_length_keeps_all_candidates():
    image, text = batch()
    short, whole = late(RankingLoss(8, 1, list_length=1)), late(RankingLoss(8, 1))
    v, t = F.normalize(image, dim=1), F.normalize(text, dim=1)
    top = [(v @ t.T, t @ v.T), (t @ v.T, v @ t.T), (v @ v.T, t @ t.T), (t @ t.T, v @ v.T)]
    by_hand = sum(F.cross_entropy(20 * p, r.argmax(1)) for p, r in top).item()
    assert value_and_gradient(short, image, text)[0].item() == pytest.approx(2 * by_hand / 2 / 16, abs=1e-12)
    full = late(RankingLoss(8, 1, list_length=500))
    assert torch.equal(value_and_gradient(full, image, text)[0], value_and_gradient(whole, image, text)[0])


def test_utility_cosine_ignores_the_scale():
    loss = late(RankingLoss(8, 1, utility="cosine"))
    assert torch.equal(value_and_gradient(loss, *batch(), 1.0)[0], value_and_gradient(loss, *batch(), 90.0)[0])


def test_no_gradient_reaches_the_reference():
    """With one side's embedding held, its references alone cannot push: order is data, not a function."""
    image, text = batch()
    loss = late(RankingLoss(8, 3, 4))
    v = F.normalize(image, dim=1).requires_grad_()
    t = F.normalize(text, dim=1)
    tiny = 1e-7 * torch.randn(v.shape, dtype=v.dtype, generator=torch.Generator().manual_seed(1))
    value = loss.own_rows(v, t, slice(0, 12), 20.0, loss.progress).total
    (gradient,) = torch.autograd.grad(value, v)
    with torch.no_grad():
        moved = loss.own_rows(v + tiny, t, slice(0, 12), 20.0, loss.progress).total
    # the true directional derivative at fixed orders is all there is
    assert (moved - value).item() == pytest.approx((gradient * tiny).sum().item(), rel=1e-4, abs=1e-13)


def test_rows_of_two_processes_add_up_to_one():
    v, t = (F.normalize(x, dim=1) for x in batch())
    loss = late(RankingLoss(8, 3, 4, include_self=False))
    whole = loss.own_rows(v, t, slice(0, 12), 20.0, loss.progress).total
    halves = [loss.own_rows(v, t, own, 20.0, loss.progress).total for own in (slice(0, 6), slice(6, 12))]
    assert sum(halves).item() / 2 == pytest.approx(whole.item(), abs=1e-12)


def test_bf16_autocast_gives_finite_single_precision():
    loss = RankingLoss(8, 5, 4)
    loss.set_progress(640, 640, 64)
    image, text = batch(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = loss(image.bfloat16().requires_grad_(), text.bfloat16(), 100.0)
    assert out.total.dtype == torch.float32 and torch.isfinite(out.total)
    out.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in loss.parameters())


def test_both_backends_agree_on_every_gradient():
    image, text = batch()
    results = {}
    for backend in ("reference", "blocked"):
        loss = late(RankingLoss(8, 3, 4, include_self=False, list_length=7, backend=backend))
        leaves = [image.clone().requires_grad_(), text.clone().requires_grad_()]
        leaves += [torch.tensor(20.0, dtype=torch.float64, requires_grad=True), *loss.parameters()]
        total = loss(*leaves[:3]).total
        results[backend] = [total.detach(), *torch.autograd.grad(total, leaves)]
    assert len(results["blocked"]) > 10  # heads and gates of both modalities are among them
    for a, b in zip(*results.values()):
        assert (a - b).abs().max() < 1e-10


def step(objective, optimizer, progress, dtype=torch.float32):
    image, text = batch(dtype=dtype, seed=progress.step)
    embeddings = Embeddings({"image": image.requires_grad_(), "text": text})
    optimizer.zero_grad(set_to_none=True)
    objective(embeddings, torch.tensor(20.0), progress).total.backward()
    optimizer.step()


def test_before_its_stage_an_order_is_bit_unchanged_and_has_no_optimiser_state():
    objective = Objective(8, "rank", LossSettings(order=3, head_dim=4))
    optimizer = torch.optim.AdamW(objective.parameters(), lr=0.1, weight_decay=0.5)
    start = {n: p.detach().clone() for n, p in objective.named_parameters()}
    # 10 steps an epoch, 64 epochs: order 2 from step 30, order 3 from step 60
    for at, acting in ((0, ()), (29, ()), (30, ("2",)), (59, ("2",)), (60, ("2", "3")), (61, ("2", "3"))):
        step(objective, optimizer, Progress(at, 640, 64))
        for name, p in objective.named_parameters():
            order = name.split(".")[4]
            assert torch.equal(p, start[name]) == (order not in acting), (at, name)
            assert (p in optimizer.state) == (order in acting), (at, name)


def test_while_the_lists_have_no_weight_no_order_moves():
    """10 epochs of 31 steps: order 2's stage would begin at step 15, but μ = 0 until step 31."""
    for staged in (True, False):
        objective = Objective(8, "rank", LossSettings(order=3, head_dim=4, staged=staged))
        optimizer = torch.optim.AdamW(objective.parameters(), lr=0.1, weight_decay=0.5)
        start = {n: p.detach().clone() for n, p in objective.named_parameters()}
        for at in (15, 30):
            step(objective, optimizer, Progress(at, 310, 10))
            assert all(torch.equal(p, start[n]) and p not in optimizer.state for n, p in objective.named_parameters())
        for at in (31, 32):
            step(objective, optimizer, Progress(at, 310, 10))
        assert not any(torch.equal(p, start[n]) for n, p in objective.named_parameters())


def test_the_report_of_a_log_line():
    objective = Objective(8, "rank", LossSettings(order=3, head_dim=4)).double()
    image, text = batch()
    embeddings, scale = Embeddings({"image": image, "text": text}), torch.tensor(20.0, dtype=torch.float64)
    out = objective(embeddings, scale, Progress(45, 640, 64), detailed=True)
    assert out.report["active_order"] == 2 and out.report["logit_scale"] == pytest.approx(math.log(20))
    assert out.report["gate2_image"] == pytest.approx(1 / (1 + math.exp(3)))
    assert {"spread2_image", "spread2_text", "nll_in", "nll_cross", "ranking_weight"} <= set(out.report)
    assert "spread3_image" not in out.report
    assert out.terms["gate_l1"].item() == pytest.approx(2 * 1e-4 / (1 + math.exp(3)) / 16 / len(image))


def test_nll_with_chosen_orders():
    image, text = batch()
    loss = late(RankingLoss(8, 3, 4))
    report = loss(image, text, 20.0, detailed=True).report
    whole, without = loss.nll_with(image, text, 20.0, (2, 3)), loss.nll_with(image, text, 20.0, (2,))
    first = late(RankingLoss(8, 1))(image, text, 20.0, detailed=True).report
    assert whole == pytest.approx({"in": report["nll_in"], "cross": report["nll_cross"]}, abs=1e-12)
    assert whole["in"] != without["in"]
    none = loss.nll_with(image, text, 20.0, ())
    assert none == pytest.approx({"in": first["nll_in"], "cross": first["nll_cross"]}, abs=1e-12)


def test_alone_it_loads_no_vision_library():
    code = (
        "import sys; from dinorankclip.losses import RankingLoss; RankingLoss(8);"
        "print([m for m in ('open_clip', 'timm', 'torchvision') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"


def test_the_example_runs_beside_open_clip(capsys):
    runpy.run_path(str(ROOT / "examples" / "own_loop.py"))
    out = capsys.readouterr().out
    assert "rank_cross" in out and "gate_l1" in out


def test_without_a_schedule_every_order_acts_at_full_weight():
    image, text = torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(0))
    alone, late = RankingLoss(8, order=3), RankingLoss(8, order=3)
    late.set_progress(99, 100, 64)
    assert alone(image, text, 10.0).total.item() == late(image, text, 10.0).total.item() != 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"utility": "scald"},
        {"ramp": "papper"},
        {"order": 1, "list_length": 3, "rankclip_eps": 1e-10},
        {"list_length": 0},
        {"list_length": -1},
    ],
)
def test_misspelt_options_are_refused(wrong):
    with pytest.raises(ValueError, match=r"utility is|rankclip_eps|list_length is"):
        RankingLoss(8, **wrong)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_one_pair_without_itself_is_refused(order):
    with pytest.raises(ValueError, match="nothing to rank"):
        RankingLoss(8, order, include_self=False)(*batch(pairs=1, dtype=torch.float32), 10.0)


def test_without_ranking_the_cost_is_that_of_uniform_lists():
    image, text = batch(pairs=5)
    uniform = RankingLoss(8, 0).nll_with(image, text, 20.0, ())
    assert uniform == {"in": pytest.approx(math.log(120)), "cross": pytest.approx(math.log(120))}


def test_embeddings_may_have_any_precision_and_the_loss_only_one_that_learns():
    third = RankingLoss(8, 3, 4)
    exact = third(*batch(dtype=torch.float64), 20.0).total
    single = third(*(rows.float() for rows in batch(dtype=torch.float64)), 20.0).total
    half = third(*(rows.bfloat16() for rows in batch(dtype=torch.float64)), 20.0).total
    assert exact.dtype == torch.float64 and exact.item() == pytest.approx(single.item(), rel=1e-4)
    assert half.item() == pytest.approx(single.item(), rel=0.05)
    with pytest.raises(ValueError, match="keep it in fp32"):
        RankingLoss(8, 3, 4).bfloat16()(*batch(dtype=torch.bfloat16), 20.0)
