"""The teacher as a third tower: loops, hand value, gradients, weights that fall, the scale of features, groups."""

import math

import pytest
import torch

from dinorankclip.config import AnchorSettings
from dinorankclip.losses import AnchorLoss, Objective, anchor_rows
from dinorankclip.losses.anchor import image_share
from dinorankclip.types import Embeddings, Progress, UserError

PAIRS, DIM, SUMMARY = 6, 4, 5
GROUPS = torch.tensor([[0], [1], [0], [2], [3], [1]])
HALF = Progress(50, 100, 10)


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(rows):
    return rows / rows.norm(dim=1, keepdim=True)


def towers():
    return [unit(draw(PAIRS, DIM, seed=seed)) for seed in (0, 1, 2)]


def looped(x, y, scale, groups):
    """Return InfoNCE by rows, of Python lists."""
    x, y, groups, rows = x.tolist(), y.tolist(), groups.tolist(), []
    dot = lambda a, b: sum(p * q for p, q in zip(a, b))  # noqa: E731
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j == i or not set(groups[i]) & set(groups[j])]
        there = math.log(sum(math.exp(scale * dot(x[i], y[j])) for j in others))
        back = math.log(sum(math.exp(scale * dot(x[j], y[i])) for j in others))
        rows.append((there + back) / 2 - scale * dot(x[i], y[i]))
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("groups", [None, GROUPS])
def test_both_terms_are_those_of_the_loops(groups):
    image, text, anchor = towers()
    given = torch.arange(PAIRS)[:, None] if groups is None else groups
    of_text, of_image = anchor_rows(image, text, anchor, 3.0, groups=groups)
    assert (of_text - looped(anchor, text, 3.0, given)).abs().max() < 1e-12
    assert (of_image - looped(image, anchor, 3.0, given)).abs().max() < 1e-12


def test_a_value_by_hand():
    """Two pairs whose towers agree: -log(e²/(e² + 1)) = log(1 + e⁻²) in every row of both terms."""
    axes = torch.eye(2, dtype=torch.float64)
    for rows in anchor_rows(axes, axes, axes, 2.0):
        assert rows.tolist() == pytest.approx([math.log(1 + math.exp(-2))] * 2)


def test_gradients_are_those_of_differences_and_images_do_not_move_anchors():
    image, text, anchor = (rows.requires_grad_() for rows in towers())
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda t, a, s: anchor_rows(image.detach(), t, a, s, groups=GROUPS)[0], (text, anchor, scale)
    )
    fixed = anchor.detach()
    assert torch.autograd.gradcheck(lambda v, s: anchor_rows(v, text.detach(), fixed, s)[1], (image, scale))
    of_image = anchor_rows(image, text, anchor, scale)[1].sum()
    assert torch.autograd.grad(of_image, (anchor, text), allow_unused=True) == (None, None)


def test_the_weights_and_the_fall():
    settings = AnchorSettings(weight=2.0, text_weight=0.25, image_weight=0.75)
    loss = AnchorLoss(settings, SUMMARY, DIM).double()
    image, text, _ = towers()
    features = {"image_summary": draw(PAIRS, SUMMARY, seed=3)}
    anchor = unit(loss.anchors(features["image_summary"]))
    of_text, of_image = (rows.mean() for rows in anchor_rows(image, text, anchor, 3.0))
    own = slice(0, PAIRS)
    terms = loss(image, text, features, torch.tensor(3.0), HALF, own)
    assert terms["anchor_text"].item() == pytest.approx(2 * 0.25 * of_text.item())
    assert terms["anchor_image"].item() == pytest.approx(2 * 0.75 * 0.5 * of_image.item())
    assert [image_share(Progress(step, 4, 1), True) for step in range(5)] == [1, 0.75, 0.5, 0.25, 0]
    assert image_share(Progress(3, 4, 1), False) == 1
    with pytest.raises(UserError, match="carries no teacher features"):
        loss(image, text, {}, torch.tensor(3.0), HALF, own)


def test_features_are_standardised():
    loss = AnchorLoss(AnchorSettings(weight=1.0), SUMMARY, DIM).double()
    rows = 5 + draw(1000, SUMMARY) * torch.tensor([1.0, 10, 100, 0.1, 0], dtype=torch.float64)
    loss.set_scale(rows)
    scaled = (rows - loss.mean) / loss.spread
    assert scaled.mean(0).abs().max() < 1e-9
    # a thousandth of the mean spread, 22, is added to each
    assert scaled.std(0, correction=0).tolist() == pytest.approx([0.98, 1, 1, 0.82, 0], abs=0.03)


def test_the_objective_adds_the_terms_to_any_contrastive_method():
    named = {name: draw(PAIRS, DIM, seed=seed) for seed, name in enumerate(("image", "text"))}
    features = {"image_summary": draw(PAIRS, SUMMARY, seed=3)}
    anchor = AnchorLoss(AnchorSettings(weight=1.0), SUMMARY, DIM).double()
    scale = torch.tensor(3.0, dtype=torch.float64)
    with_anchor = Objective(DIM, "clip", anchor=anchor)(Embeddings(named), scale, HALF, teacher_features=features)
    plain = Objective(DIM, "clip")(Embeddings(named), scale, HALF)
    assert list(with_anchor.terms) == ["contrastive", "anchor_text", "anchor_image"]
    assert with_anchor.terms["contrastive"] == plain.total
    assert with_anchor.total == sum(with_anchor.terms.values())
