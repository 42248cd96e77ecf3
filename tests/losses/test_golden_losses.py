"""Whole objectives on the fixed pairs of the public implementations."""

import math

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.config import LossSettings
from dinorankclip.losses import Objective, RankingLoss
from dinorankclip.losses.contrastive import info_nce
from dinorankclip.types import Embeddings, Progress, UserError
from tests.golden import SCALE, pairs

S = torch.tensor(SCALE, dtype=torch.float64)


def embeddings(**changes):
    image, text, second = pairs()
    return Embeddings({"image": image, "text": text, "second_text": second} | changes)


def at_epoch(e):
    """Epoch e of 64, counted from 1, as RankCLIP does."""
    return Progress(step=(e - 1) * 10, total_steps=640, epochs=64)


@pytest.mark.parametrize("e, total", [(1, 0.236434), (2, 0.241870), (22, 0.350597), (43, 0.464760), (64, 0.464760)])
def test_exact_rankclip_totals(e, total):
    assert Objective(3, "rankclip")(embeddings(), S, at_epoch(e)).total.item() == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize("e, total", [(1, 0.236434), (2, 0.241871), (22, 0.350620), (43, 0.464805), (64, 0.464805)])
def test_public_rankclip_totals(e, total):
    image, text, _ = pairs()
    loss = RankingLoss(3, order=1, rankclip_eps=1e-10)
    loss.set_progress((e - 1) * 10, 640, 64)
    ours = info_nce(image, text, S) + loss(image, text, S).total
    assert ours.item() == pytest.approx(total, abs=1e-6)


def test_public_rankclip_gradients():
    image, text = (F.normalize(x, dim=1).requires_grad_() for x in pairs()[:2])
    logit_scale = S.log().requires_grad_()
    loss = RankingLoss(3, order=1, rankclip_eps=1e-10)
    loss.set_progress(630, 640, 64)
    # on the unit rows themselves: the public figures stop before the normalisation
    loss.own_rows(image, text, slice(0, 4), logit_scale.exp(), loss.progress).total.backward()
    assert image.grad[0].tolist() == pytest.approx([0.043917, 0.056125, -0.002470], abs=2e-6)
    assert text.grad[0].tolist() == pytest.approx([0.052133, -0.048541, -0.023009], abs=2e-6)
    assert logit_scale.grad.item() == pytest.approx(0.179012, abs=2e-6)


def test_cyclip_total():
    out = Objective(3, "cyclip")(embeddings(), S, at_epoch(1))
    assert out.total.item() == pytest.approx(0.423932, abs=1e-6)
    assert set(out.terms) == {"contrastive", "cyclic_in", "cyclic_cross"}


def test_alip_total_and_its_thresholds():
    objective = Objective(3, "alip").double()
    assert objective(embeddings(), S, at_epoch(1)).total.item() == pytest.approx(0.174327, abs=1e-6)
    moved = objective.state_dict()["alip_thresholds"].clone()
    assert (moved < 1).all() and (moved > 0.98).all()
    objective.eval()(embeddings(), S, at_epoch(1))
    assert torch.equal(moved, objective.alip_thresholds)


def test_alip_without_a_second_caption_explains_itself():
    image, text, _ = pairs()
    with pytest.raises(UserError, match="second caption"):
        Objective(3, "alip")(Embeddings({"image": image, "text": text}), S, at_epoch(1))


def test_an_unknown_method_is_refused():
    with pytest.raises(UserError, match="rankclip"):
        Objective(3, "blip")


def test_order_0_is_log_factorial_with_the_gradient_of_clip():
    gradients = []
    for method, settings in (("clip", None), ("rank", LossSettings(order=0))):
        image, text, _ = (x.requires_grad_() for x in pairs())
        out = Objective(3, method, settings)(Embeddings({"image": image, "text": text}), S, at_epoch(64), True)
        gradients.append(torch.autograd.grad(out.total, (image, text)))
    for a, b in zip(*gradients):
        assert torch.equal(a, b)
    assert out.report["nll_in"] == out.report["nll_cross"] == pytest.approx(math.lgamma(5), abs=1e-12)
    assert out.terms["rank_in"].item() == pytest.approx(2 * math.lgamma(5) / 16 / 4, abs=1e-12)


def test_clip_computes_and_holds_nothing_else():
    objective = Objective(3, "clip")
    out = objective(embeddings(), S, at_epoch(64))
    assert set(out.terms) == {"contrastive"} and not out.report
    assert not list(objective.parameters()) and not list(objective.buffers())
    # not bit for bit: which side of a product is transposed decides how some processors add up
    assert out.total.item() == pytest.approx(info_nce(*pairs()[:2], S).item(), rel=1e-14)


def test_terms_add_up_to_the_total():
    for method in ("clip", "cyclip", "alip", "rankclip", "rank"):
        out = Objective(3, method, LossSettings(staged=False)).double()(embeddings(), S, at_epoch(30))
        assert sum(out.terms.values()).item() == pytest.approx(out.total.item(), abs=1e-12)
