"""Every switch of the ranking loss: value and gradient against loops from the paper, values by hand, refusals."""

import math

import pytest
import torch

from dinorankclip.config import LossSettings
from dinorankclip.losses import Objective, RankingLoss
from dinorankclip.losses.ranking import sized
from dinorankclip.types import Embeddings, Progress
from tests.losses import paper_loops

PAIRS, DIM, WIDTH = 6, 5, 3
USUAL = {
    "size": "rankclip", "in_weight": 1.0, "cross_weight": 1.0, "direction_weights": (1.0, 1.0), "utility": "scaled",
    "detached_scale": False, "gate_start": None, "gate_l1": None, "gate_l1_size": "lists", "rankclip_eps": 0.0,
    "include_self": True, "list_length": None,
}  # fmt: skip
CASES = {
    "defaults, order 3": (3, {}),
    "defaults, order 5": (5, {}),
    "literal size": (3, {"size": "equation"}),
    "literal size, L1 plain": (3, {"size": "equation", "gate_l1_size": "plain"}),
    "L1 plain": (5, {"gate_l1_size": "plain"}),
    "detached scale": (3, {"detached_scale": True}),
    "detached scale, order 1": (1, {"detached_scale": True}),
    "cosine": (2, {"utility": "cosine"}),
    "in and cross apart": (3, {"in_weight": 0.3, "cross_weight": 1.7}),
    "lists of images alone": (3, {"direction_weights": (2.0, 0.0)}),
    "lists of texts more": (1, {"direction_weights": (0.5, 1.5)}),
    "own starts and L1 of gates": (4, {"gate_start": (-1.0, 0.5, 1.0), "gate_l1": (0.5, 0.25, 2.0)}),
    "public epsilon": (1, {"rankclip_eps": 1e-3}),
    "public epsilon, literal size, without self": (
        1,
        {"rankclip_eps": 1e-10, "size": "equation", "include_self": False},
    ),
    "everything at once": (
        5,
        {
            "size": "equation", "in_weight": 0.5, "cross_weight": 2.0, "direction_weights": (0.7, 1.1),
            "detached_scale": True, "gate_start": (0.0, 0.5, -0.5, 1.0), "gate_l1": (0.1, 0.2, 0.3, 0.4),
            "gate_l1_size": "plain", "include_self": False, "list_length": 4,
        },
    ),
}  # fmt: skip


def batch():
    draw = torch.Generator().manual_seed(0)
    image = torch.randn(PAIRS, DIM, dtype=torch.float64, generator=draw)
    return image, image + torch.randn(PAIRS, DIM, dtype=torch.float64, generator=draw)


def made(order, switch, backend="auto"):
    loss = RankingLoss(DIM, order, WIDTH, backend=backend, seed=5, **USUAL | switch).double()
    loss.set_progress(20, 64, 64)  # epoch 20 of 64: every order acts, μ = 60/63
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in loss.named_parameters():  # gates stay as they start; nothing else is silent
            if ".gates." not in name:
                p.copy_(0.5 * torch.randn(p.shape, dtype=p.dtype, generator=draw))
            elif switch.get("gate_start") is None:
                p.add_(3.0)
    return loss


def numbers_of(loss):
    """Return the weights of all heads and the gates λ_r, by modality."""
    weights = {m: dict(heads.heads.named_parameters()) for m, heads in loss.transitions.items()}
    gates = {
        m: {int(r): 1 / (1 + torch.exp(-s)) for r, s in heads.gates.items()} for m, heads in loss.transitions.items()
    }
    return weights, gates


BACKENDS = [*((case, "auto") for case in CASES), ("everything at once", "reference")]


@pytest.mark.parametrize(("case", "backend"), BACKENDS)
def test_values_and_gradients_are_those_of_the_loops(case, backend):
    order, switch = CASES[case]
    loss = made(order, switch, backend)
    image, text = (rows.requires_grad_() for rows in batch())
    scale = torch.tensor(7.0, dtype=torch.float64, requires_grad=True)
    ours = loss(image, text, scale).terms
    weights, gates = numbers_of(loss)
    theirs = paper_loops.terms(image, text, scale, weights, gates, order, 60 / 63, USUAL | switch)
    assert ours.keys() == theirs.keys()
    leaves = [image, text, scale, *loss.parameters()]
    for name in theirs:
        assert ours[name].item() == pytest.approx(theirs[name].item(), abs=1e-9, rel=0)
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        for a, b in zip(*(torch.autograd.grad(each[name], leaves, **options) for each in (ours, theirs))):
            assert (a - b).abs().max() < 1e-9
    moved = torch.autograd.grad(sum(ours.values()), scale, allow_unused=True)[0]
    still = switch.get("detached_scale") or switch.get("utility") == "cosine"
    assert (moved is None or moved == 0) if still else abs(moved) > 1e-6


def test_sizes_by_hand():
    """Two pairs, every similarity equal: each list of two costs log 2; order 2's L1 is 1e-4·σ(-3) a modality."""
    rows = torch.ones(2, 3, dtype=torch.float64)
    gate = 1 / (1 + math.exp(3))
    for size, factor in (("rankclip", 1 / 32), ("equation", 1.0)):
        for l1_size, l1 in (("lists", factor), ("plain", 1.0)):
            loss = RankingLoss(3, 2, 2, size=size, gate_l1_size=l1_size, in_weight=0.25).double()
            with torch.no_grad():
                for heads in loss.transitions.values():
                    heads.heads["2"].query.weight.zero_()
            found = loss(rows, rows, 5.0).terms
            assert found["rank_cross"].item() == pytest.approx(2 * factor * math.log(2), abs=1e-12)
            assert found["rank_in"].item() == pytest.approx(0.25 * 2 * factor * math.log(2), abs=1e-12)
            assert found["gate_l1"].item() == pytest.approx(2 * 1e-4 * gate * l1, rel=1e-6)
    assert sized(2.0, 128) == 2 / 16 / 128 and sized(2.0, 128, "equation") == 2.0


def test_opening_a_gate_costs_what_the_setting_says():
    """Plain L1 on order 4 or 5 is 0.08 or 0.8 nats for each position of a list; in the lists' size it is 5e-3/K."""
    for order, nats in ((4, 0.08), (5, 0.8)):
        eta = RankingLoss(8, order).gate_l1[order]
        assert eta / (sized(2.0, 24) * 24) == pytest.approx(nats)
        assert sized(eta, 24) / (sized(2.0, 24) * 24) == pytest.approx(eta / 2 / 24)


def test_gates_start_where_they_are_asked_to():
    loss = RankingLoss(8, 4, 4, gate_start=(-1.0, 2.0, 0.5))
    for heads in loss.transitions.values():
        assert {r: s.item() for r, s in heads.gates.items()} == {"2": -1.0, "3": 2.0, "4": 0.5}
    usual, same = RankingLoss(8, 4, 4), RankingLoss(8, 4, 4, gate_start=(-3, -5, -7))
    assert all(torch.equal(a, b) for a, b in zip(usual.parameters(), same.parameters()))


def test_settings_reach_the_loss():
    settings = LossSettings(
        order=1, size="equation", in_weight=0.5, cross_weight=3.0, direction_weights=(1.0, 0.5), rankclip_eps=1e-4,
        detached_scale=True,
    )  # fmt: skip
    image, text = batch()
    scale = torch.tensor(7.0, dtype=torch.float64)
    out = Objective(DIM, "rankclip", settings)(Embeddings({"image": image, "text": text}), scale, Progress(20, 64, 64))
    switch = USUAL | {
        name: getattr(settings, name)
        for name in ("size", "in_weight", "cross_weight", "direction_weights", "rankclip_eps", "detached_scale")
    }
    nothing = {"image": {}, "text": {}}
    for name, value in paper_loops.terms(image, text, scale, nothing, nothing, 1, 60 / 63, switch).items():
        assert out.terms[name].item() == pytest.approx(value.item(), abs=1e-9)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"size": "literal"}, "size is rankclip or equation"),
        ({"gate_l1_size": "small"}, "gate_l1_size is lists or plain"),
        ({"gate_l1": (1e-4,)}, "gate_l1 has a number for each order from 2 to 3; not 1"),
        ({"gate_start": (-3.0, -5.0, -7.0)}, "gate_start has a number for each order from 2 to 3; not 3"),
        ({"rankclip_eps": 1e-10}, "order 1 over whole lists"),
    ],
)
def test_switches_that_do_not_fit_are_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        RankingLoss(8, 3, **wrong)
