"""Transition heads against plain loops, the reference figures, and their promises about size, seeds and memory."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.losses import RankingLoss, transitions
from dinorankclip.losses.plackett_luce import plackett_luce_nll
from dinorankclip.losses.transitions import TransitionHeads, pair_history, transition_scores
from tests.golden import SCALE, pairs, sorted_by
from tests.losses.list_oracle import Oracle


def unit(rows, dim, seed):
    draw = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, dim, dtype=torch.float64, generator=draw), dim=1)


def rankings(count, items, seed=0):
    """Random lists [count, items]."""
    draw = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(items, generator=draw) for _ in range(count)])


def loud(heads, seed=0):
    """Random gates, biases and offsets, so that no part is silent."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in heads.named_parameters():
            if p.ndim < 2 or "positional" in name:
                p.copy_(torch.randn(p.shape, generator=draw))
    return heads


@pytest.mark.parametrize("order", range(6))
def test_every_list_has_the_probability_of_the_loops(order):
    items, theta = unit(6, 8, 1), 2 * torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    heads = loud(TransitionHeads(8, order, 4, seed=3)).double()
    every = list(itertools.permutations(range(6)))
    lists = torch.tensor(every)
    oracle = Oracle(heads.state_dict(), items, order, math.sqrt(8))
    expected = torch.tensor([oracle.log_probability(theta.tolist(), list(y)) for y in every], dtype=torch.float64)
    utilities = (theta if order else 0 * theta).expand(720, 6)
    corrections = heads(items, [lists], range(2, order + 1)) if order >= 2 else ([None], None)
    for backend in ("reference", "blocked"):
        ours = -plackett_luce_nll(utilities, lists, corrections[0][0], corrections[1], backend=backend)
        assert (ours - expected).abs().max() < 1e-9
        assert ours.exp().sum().item() == pytest.approx(1, abs=1e-9)
    if order == 0:
        assert expected.tolist() == pytest.approx([-math.lgamma(7)] * 720)
    if order >= 2:  # the loops are no accident of quiet heads: each order moves the answer
        without = Oracle(heads.state_dict(), items, order - 1, math.sqrt(8))
        assert abs(without.log_probability(theta.tolist(), list(every[100])) - expected[100].item()) > 1e-3


def fixture_heads(order):
    heads = TransitionHeads(3, order, 2).double()
    heads.item_scale = 1.0  # these figures were taken without √D
    weights = {
        "heads.2.query.weight": [[1, -0.5, 0.2], [0.3, 0.8, -1]],
        "heads.2.key.weight": [[0.6, 0.1, -0.4], [-0.2, 0.9, 0.5]],
        "heads.3.first.weight": [[0.5, -1, 0.3], [0.2, 0.4, 1]],
        "heads.3.second.weight": [[-0.3, 0.7, 0.6], [1, -0.2, 0.1]],
        "heads.3.product.weight": [[0.8, 0.2, -0.6], [-0.5, 0.9, 0.4]],
        "heads.3.query.weight": [[1, 0.5], [-0.4, 0.9]],
        "heads.3.key.weight": [[0.3, -0.7, 1], [0.8, 0.2, -0.1]],
        "gates.2": math.inf,
        "gates.3": math.inf,
    }
    state = {name: torch.tensor(weights[name], dtype=torch.float64) for name in heads.state_dict()}
    heads.load_state_dict(state)
    return heads


def test_heads_of_orders_2_and_3_are_equation_7():
    heads, items = loud(TransitionHeads(8, 3, 4)).double(), unit(6, 8, 7)
    e = math.sqrt(8) * items
    lists = rankings(9, 6)
    two, three = heads.heads["2"], heads.heads["3"]
    beta = heads.gate(2) * transition_scores(e, e, two.query.weight, two.key.weight)
    history = pair_history(e[:, None], e, three.first.weight, three.second.weight, three.product.weight)
    gamma = heads.gate(3) * transition_scores(history, e, three.query.weight, three.key.weight)
    for some in (lists, lists[:2]):  # many lists use a table of all pairs, few ones only their own
        (queries,), keys = heads(items, [some], (2,))
        torch.testing.assert_close(queries[:, 1:] @ keys.T, beta[some[:, :-1]])
        (queries,), keys = heads(items, [some], (3,))
        torch.testing.assert_close(queries[:, 2:] @ keys.T, gamma[some[:, :-2], some[:, 1:-1]])


FIGURES = {2: [4.507206, 3.450463, 3.067068, 3.924554], 3: [4.245978, 3.505134, 3.203283, 3.909159]}


@pytest.mark.parametrize("order", FIGURES)
def test_reference_figures_of_orders_2_and_3(order):
    image, text = (F.normalize(x, dim=1) for x in pairs()[:2])
    a, b, cross = image @ image.T, text @ text.T, image @ text.T
    heads = fixture_heads(order)
    rows = []
    for theta, reference, items in ((a, b, image), (b, a, text), (cross, cross.T, text), (cross.T, cross, image)):
        lists = sorted_by(reference)
        (queries,), keys = heads(items, [lists], range(2, order + 1))
        rows.append(plackett_luce_nll(SCALE * theta, lists, queries, keys))
    assert [r.mean().item() for r in rows] == pytest.approx(FIGURES[order], abs=1e-6)
    if order == 3:
        assert rows[0].tolist() == pytest.approx([1.028912, 0.037984, 2.133784, 13.783232], abs=1e-6)


@pytest.mark.parametrize(("order", "both"), [(2, (3.978834, 3.495811)), (3, (3.875556, 3.556221))])
def test_the_loss_is_the_mean_of_these_lists(order, both):
    loss = RankingLoss(3, order, 2).double()
    for modality in ("image", "text"):
        loss.transitions[modality] = fixture_heads(order)
    nll = loss.nll_with(*pairs()[:2], SCALE, tuple(range(2, order + 1)))
    assert (nll["in"], nll["cross"]) == pytest.approx(both, abs=1e-6)


def test_lists_of_images_have_the_image_heads_and_lists_of_captions_the_text_heads():
    image, text = (F.normalize(x, dim=1) for x in pairs()[:2])
    loss = RankingLoss(3, 3, 2, seed=5).double()
    for number, modality in enumerate(("image", "text")):
        loud(loss.transitions[modality], seed=number)

    def rows(modality, theta, reference, items):
        lists = sorted_by(reference)
        (queries,), keys = loss.transitions[modality](items, [lists], (2, 3))
        return plackett_luce_nll(SCALE * theta, lists, queries, keys).mean().item()

    a, b, cross = image @ image.T, text @ text.T, image @ text.T
    inside = (rows("image", a, b, image) + rows("text", b, a, text)) / 2
    across = (rows("text", cross, cross.T, text) + rows("image", cross.T, cross, image)) / 2
    swapped = (rows("text", a, b, image) + rows("image", b, a, text)) / 2
    nll = loss.nll_with(image, text, SCALE, (2, 3))
    assert (nll["in"], nll["cross"]) == pytest.approx((inside, across), abs=1e-9)
    assert abs(swapped - inside) > 1e-3


def test_parameter_counts_stay_below_the_papers():
    paper = {2: 0.16e6, 3: 0.61e6, 4: 1.32e6, 5: 2.30e6}
    for order, most in paper.items():
        both = 2 * sum(p.numel() for p in TransitionHeads(512, order, 32).parameters())
        print(f"order {order}: {both:,} parameters in both modalities (paper {most:,.0f})")
        assert both <= most


def test_gates_start_where_the_paper_says():
    heads = TransitionHeads(8, 5, 4)
    assert [heads.gates[str(r)].item() for r in (2, 3, 4, 5)] == [-3, -5, -7, -9]
    assert heads.gate(2).item() == pytest.approx(1 / (1 + math.exp(3)))


def test_each_order_and_modality_has_its_own_seed():
    before = torch.random.get_rng_state()
    small, large = TransitionHeads(8, 2, 4, seed=1), TransitionHeads(8, 5, 4, seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    for name, p in small.state_dict().items():
        assert torch.equal(p, large.state_dict()[name])
    other = TransitionHeads(8, 2, 4, modality="text", seed=1)
    assert not torch.equal(other.heads["2"].query.weight, small.heads["2"].query.weight)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9])
def test_positions_without_a_full_history_get_exactly_zero(length):
    heads = loud(TransitionHeads(8, 5, 4)).double()
    lists = rankings(6, 9)[:, :length]
    (queries,), keys = heads(unit(9, 8, 4), [lists], (2, 3, 4, 5))
    assert queries.shape == (6, length, 16) and keys.shape == (9, 16)
    for block, r in enumerate((2, 3, 4, 5)):
        part = queries[:, :, 4 * block : 4 * block + 4]
        assert (part[:, : r - 1] == 0).all()
        assert (part[:, r - 1 :].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("length", [6, 12])
def test_blocks_pair_table_and_listed_pairs_agree(length, monkeypatch):
    """Long lists use a table of all pairs, short ones only their own; both may be cut into recomputed blocks."""
    heads = loud(TransitionHeads(8, 5, 4)).double()
    lists = [rankings(12, 12, seed) for seed in range(2)]

    def run(orders):
        items = unit(12, 8, 5).requires_grad_()
        queries, keys = heads(items, orders, (2, 3, 4, 5))
        loss = sum((q[:, :length] ** 2).sum() for q in queries) + keys.sin().sum()
        return [*(q[:, :length].detach() for q in queries), *torch.autograd.grad(loss, [items, *heads.parameters()])]

    whole = run(lists)
    monkeypatch.setattr(transitions, "BLOCK", 700)
    for other in (run(lists), run([y[:, :length].contiguous() for y in lists])):
        for a, b in zip(whole, other):
            assert (a - b).abs().max() < 1e-10


def test_orders_that_are_not_active_stay_out_of_the_graph():
    heads = TransitionHeads(8, 3, 4)
    lists = rankings(5, 5)
    (queries,), keys = heads(unit(5, 8, 6).float(), [lists], (2,))
    assert queries.shape[-1] == 4
    (queries.sum() + keys.sum()).backward()
    for name, p in heads.named_parameters():
        assert (p.grad is None) == (".3." in name or name.endswith(".3"))


def test_heatmaps_are_centred_over_candidates_and_empty_at_the_history():
    heads, items = loud(TransitionHeads(8, 3, 4)).double(), unit(6, 8, 7)
    oracle = Oracle(heads.state_dict(), items, 3, math.sqrt(8))
    gate = {r: heads.gate(r).item() for r in (2, 3)}
    pairs_map, triples = heads.centred_pairs(items), heads.centred_triples(items, before=2)
    for a in range(6):
        raw = {d: oracle.correction(2, (a,), d) / gate[2] for d in range(6) if d != a}
        mean = sum(raw.values()) / len(raw)
        assert math.isnan(pairs_map[a, a])
        assert all(pairs_map[a, d].item() == pytest.approx(v - mean, abs=1e-9) for d, v in raw.items())
        if a == 2:
            assert triples[a].isnan().all()
            continue
        raw = {d: oracle.correction(3, (2, a), d) / gate[3] for d in range(6) if d not in (2, a)}
        mean = sum(raw.values()) / len(raw)
        assert triples[a, 2].isnan() and triples[a, a].isnan()
        assert all(triples[a, d].item() == pytest.approx(v - mean, abs=1e-9) for d, v in raw.items())
