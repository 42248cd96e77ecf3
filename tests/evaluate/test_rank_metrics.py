"""Rank correlations and NDCG against loops, with ties."""

import math

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.evaluate.rank_metrics import (
    average_ranks,
    discounts,
    inversions,
    kendall,
    ranking_quality,
    rounded,
    shared_gain,
    spearman,
)
from tests.evaluate.slow_orders import slow_kendall, slow_spearman


@pytest.mark.parametrize("items", [2, 3, 7, 8, 9, 16, 17, 33])
@pytest.mark.parametrize("values", [1, 2, 4, 1000])
def test_both_follow_the_loops_with_and_without_ties(items, values):
    generator = torch.Generator().manual_seed(items * values)
    x = torch.randint(0, values, (6, items), generator=generator).float()
    y = torch.randint(0, max(2, values // 2), (6, items), generator=generator).float()
    assert kendall(x, y).tolist() == pytest.approx([slow_kendall(*rows) for rows in zip(x.tolist(), y.tolist())])
    assert spearman(x, y).tolist() == pytest.approx([slow_spearman(*rows) for rows in zip(x.tolist(), y.tolist())])


def test_a_case_by_hand():
    # Pairs in order: 4 of 6; (b, c) tied in x, (c, d) turned round in y.
    x, y = torch.tensor([[1.0, 2.0, 2.0, 3.0]]), torch.tensor([[1.0, 2.0, 4.0, 3.0]])
    assert kendall(x, y).item() == pytest.approx((4 - 1) / math.sqrt(5 * 6))
    assert average_ranks(x).tolist() == [[0, 1.5, 1.5, 3]]
    assert inversions(torch.tensor([[2, 0, 3, 1], [3, 2, 1, 0], [0, 1, 2, 3]])).tolist() == [3, 6, 0]


def test_same_order_reversed_order_no_order():
    x = torch.rand(5, 100, generator=torch.Generator().manual_seed(0))
    for measure in (kendall, spearman):
        assert measure(x, x.exp()).tolist() == pytest.approx([1] * 5)
        assert measure(x, -x).tolist() == pytest.approx([-1] * 5)
        assert measure(x, torch.zeros_like(x)).tolist() == [0] * 5


def test_independent_orders_agree_by_chance_alone():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(400, 200, generator=generator), torch.rand(400, 200, generator=generator)
    for measure in (kendall, spearman):
        found = measure(x, y)
        assert abs(found.mean()) < 3 * found.std() / 20
    # The variance that theory gives τ: 2(2n + 5) / 9n(n - 1).
    assert kendall(x, y).var().item() == pytest.approx(2 * 405 / (9 * 200 * 199), rel=0.25)


def test_rounding_errors_are_no_order():
    assert rounded(torch.tensor([0.3, 0.3 + 6e-8, 0.300003])).tolist() == [300000, 300000, 300003]


def units(*shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def graded(queries, items, seed=1):
    """A few levels of relevance, so with ties."""
    return torch.randint(0, 5, (queries, items), generator=torch.Generator().manual_seed(seed)) / 4


def slow_ndcg(similarity, relevance, k):
    """Items with equal similarity share their mean gain."""
    order = sorted(range(len(similarity)), key=lambda g: -similarity[g])
    gains = []
    for g in order:
        tied = [relevance[h] for h in order if similarity[h] == similarity[g]]
        gains.append(sum(tied) / len(tied))
    best = sorted(relevance, reverse=True)
    dcg = [sum(gain / math.log2(2 + r) for r, gain in enumerate(row[:k])) for row in (gains, best)]
    return dcg[0] / dcg[1]


def test_ndcg_follows_the_loops_across_chunks():
    queries, gallery, relevance = units(23, 2), units(17, 2, seed=2), graded(23, 17)
    gallery = gallery[torch.arange(17) % 11]  # every query meets ties
    found = ranking_quality(queries, gallery, relevance, ks=(3, 10, None), chunk=5)
    similarity = ((queries @ gallery.T) * 1e6).round().tolist()
    for name, k in (("NDCG@3", 3), ("NDCG@10", 10), ("NDCG", None)):
        slow = [slow_ndcg(row, truth, k) for row, truth in zip(similarity, relevance.tolist())]
        assert found.ndcg[name].tolist() == pytest.approx(slow, abs=1e-6)


def test_ndcg_by_hand():
    # Ranked: relevance 0.5, then 1, then 0.
    queries, gallery = torch.tensor([[1.0, 0.0]]), F.normalize(torch.tensor([[1.0, 1], [1, 0.1], [0, 1]]), dim=1)
    found = ranking_quality(queries, gallery, torch.tensor([[1.0, 0.5, 0.0]]), ks=(1, 2, None))
    best = 1 + 0.5 / math.log2(3)
    assert found.ndcg["NDCG@1"].item() == pytest.approx(0.5)
    assert found.ndcg["NDCG@2"].item() == pytest.approx((0.5 + 1 / math.log2(3)) / best)
    assert found.ndcg["NDCG"].item() == pytest.approx(found.ndcg["NDCG@2"].item())
    assert found.chance["NDCG@1"].item() == pytest.approx(0.5)
    assert found.chance["NDCG"].item() == pytest.approx(0.5 * (1 + 1 / math.log2(3) + 1 / 2) / best)
    assert found.tau.item() == pytest.approx(1 / 3)


def test_the_best_order_scores_one_and_the_worst_minus_one():
    relevance = torch.rand(8, 30, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    # In one dimension more than there are items, similarities can be anything.
    best, worst = F.normalize(relevance.float()), F.normalize(1 - relevance.float())
    gallery = torch.eye(30)
    assert ranking_quality(best, gallery, relevance).ndcg["NDCG"].tolist() == pytest.approx([1] * 8)
    assert ranking_quality(best, gallery, relevance).tau.tolist() == pytest.approx([1] * 8)
    assert ranking_quality(worst, gallery, relevance).tau.tolist() == pytest.approx([-1] * 8)


def test_random_embeddings_score_at_chance():
    queries, gallery, relevance = units(600, 16), units(200, 16, seed=2), graded(600, 200)
    found = ranking_quality(queries, gallery, relevance)
    assert abs(found.tau.mean()) < 3 * found.tau.std() / 600**0.5
    for name, values in found.ndcg.items():
        above = values - found.chance[name]
        assert abs(above.mean()) < 3 * above.std() / 600**0.5


def test_a_collapsed_model_scores_exactly_at_chance():
    relevance = graded(40, 50).sort(dim=1, descending=True).values  # an order by index would be the best one
    row = units(1, 64)
    found = ranking_quality(row.expand(40, 64), row.expand(50, 64), relevance)
    assert found.tau.tolist() == [0.0] * 40
    for name, values in found.ndcg.items():
        assert values.tolist() == pytest.approx(found.chance[name].tolist())


def test_chance_is_the_mean_over_orders():
    relevance = graded(1, 40)
    generator = torch.Generator().manual_seed(0)
    orders = torch.stack([torch.randperm(40, generator=generator) for _ in range(4000)]).float()
    gain = shared_gain(orders, relevance.expand(4000, 40))
    drawn = gain @ discounts(40, 10) / (relevance.double().sort(descending=True).values @ discounts(40, 10))
    chance = ranking_quality(units(1, 4), units(40, 4, seed=3), relevance).chance["NDCG@10"].item()
    assert abs(drawn.mean().item() - chance) < 3 * drawn.std().item() / 4000**0.5


def test_a_query_does_not_find_itself():
    rows, relevance = units(20, 8), graded(20, 20)
    found = ranking_quality(rows, rows, relevance, torch.arange(20))
    for i in range(20):
        others = [j for j in range(20) if j != i]
        alone = ranking_quality(rows[i : i + 1], rows[others], relevance[i : i + 1, others])
        assert found.tau[i] == pytest.approx(alone.tau.item())
        assert found.ndcg["NDCG@10"][i] == pytest.approx(alone.ndcg["NDCG@10"].item())


def test_a_query_that_asks_nothing_is_left_out():
    relevance = graded(6, 10)
    relevance[2], relevance[4] = 0.0, 0.5
    found = ranking_quality(units(6, 4), units(10, 4, seed=1), relevance, chunk=2)
    assert found.queries.tolist() == [0, 1, 3, 5] and len(found.tau) == len(found.ndcg["NDCG"]) == 4
