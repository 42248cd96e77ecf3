from math import comb

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.scoring.retrieval import chance_recall, ranks, recalls, retrieval_scores, right_pairs


def slow_ranks(queries, gallery, right):
    found = []
    for q in range(len(queries)):
        similarity = [float(queries[q] @ gallery[g]) for g in range(len(gallery))]
        order = sorted(range(len(gallery)), key=lambda g: (-similarity[g], g))
        found.append(min(order.index(g) for p, g in right.tolist() if p == q))
    return found


def test_ranks_follow_the_loops_across_chunks():
    generator = torch.Generator().manual_seed(0)
    # Small integers: many exact ties.
    queries = torch.randint(-2, 3, (23, 3), generator=generator).float()
    gallery = torch.randint(-2, 3, (17, 3), generator=generator).float()
    pairs = {(q, int(g)) for q in range(23) for g in torch.randint(0, 17, (2,), generator=generator)}
    right = torch.tensor(sorted(pairs, reverse=True))
    assert ranks(queries, gallery, right, chunk=5).tolist() == slow_ranks(queries, gallery, right)


def test_a_hand_worked_case():
    image = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    text = F.normalize(torch.tensor([[1.0, 0.1], [0.2, 1.0], [1.0, 0.9]]), dim=1)
    right = torch.tensor([[0, 0], [1, 1], [1, 2]])  # the third caption describes image 1 but looks like image 0
    found = recalls(image, text, right)
    assert found["i2t R@1"] == 1.0
    assert abs(found["t2i R@1"] - 2 / 3) < 1e-12
    assert found["t2i R@5"] == 1.0
    assert abs(found["chance R@1"] - 3 / 6) < 1e-12


def test_equal_captions_are_right_for_every_image_that_has_them():
    texts, right = right_pairs([["a red cat", "a cat"], ["A  red cat"], ["a dog"]])
    assert texts == ["a red cat", "a cat", "A  red cat", "a dog"]
    assert right.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 2], [2, 3]]


def test_random_embeddings_score_at_chance_and_collapsed_ones_too():
    generator = torch.Generator().manual_seed(1)
    n = 2000
    image = F.normalize(torch.randn(n, 16, generator=generator), dim=1)
    text = F.normalize(torch.randn(n, 16, generator=generator), dim=1)
    right = torch.arange(n)[:, None].expand(n, 2)
    found = recalls(image, text, right)
    for name in ("i2t R@10", "t2i R@10"):
        assert abs(found[name] - 10 / n) < 4 * (10 / n / n) ** 0.5
    collapsed = recalls(image[:1].expand(n, 16), text[:1].expand(n, 16), right)
    assert collapsed["i2t R@1"] == 1 / n


def test_identical_embeddings_score_everything():
    rows = F.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(2)), dim=1)
    found = recalls(rows, rows, torch.arange(50)[:, None].expand(50, 2))
    assert found["mean R@1"] == 1.0


def test_equal_captions_may_count_as_different():
    texts, right = right_pairs([["a cat", "a cat"], ["a cat"]], equal_captions=False)
    assert texts == ["a cat"] * 3 and right.tolist() == [[0, 0], [0, 1], [1, 2]]


def test_chance_is_the_share_of_draws_that_hit():
    right = torch.tensor([[0, 0], [0, 1], [0, 2], [1, 3]])  # 3 and 1 right items of 9
    for k in (1, 5, 8, 9):
        expected = sum(1 - comb(9 - r, k) / comb(9, k) for r in (3, 1)) / 2
        assert chance_recall(right, 2, 9, k) == pytest.approx(expected)
    assert chance_recall(right, 2, 9, 20) == 1.0


def test_scores_agree_with_recalls_and_their_items_with_both():
    generator = torch.Generator().manual_seed(3)
    captions = [[f"caption {i} {c}" for c in range(1 + i % 3)] for i in range(40)]
    count = sum(map(len, captions))
    image = F.normalize(torch.randn(40, 5, generator=generator), dim=1)
    text = F.normalize(torch.randn(count, 5, generator=generator), dim=1)
    expected = recalls(image, text, right_pairs(captions)[1])
    found = {score.name: score for score in retrieval_scores(image, text, captions)}
    for name, score in found.items():
        assert score.value == pytest.approx(expected[name]), name
    assert found["t2i R@1"].clusters.tolist()[:4] == [0, 1, 1, 2] and found["mean R@1"].n == 40
    assert found["mean R@1"].chance == pytest.approx(expected["chance R@1"])


def test_random_embeddings_score_at_chance_at_every_k_with_several_captions():
    generator = torch.Generator().manual_seed(4)
    captions = [[f"{i} {c}" for c in range(5)] for i in range(800)]
    image = F.normalize(torch.randn(800, 24, generator=generator), dim=1)
    text = F.normalize(torch.randn(4000, 24, generator=generator), dim=1)
    for score in retrieval_scores(image, text, captions):
        # Captions of one image are independent here, so the spread is that of n separate guesses.
        assert abs(score.value - score.chance) < 4 * (score.chance / score.n) ** 0.5, score.name
