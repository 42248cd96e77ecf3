from math import comb

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.evaluate.intervals import interval
from dinorankclip.evaluate.retrieval import (
    Right,
    RightItems,
    alike,
    both_ways,
    chance_recall,
    ranks,
    retrieval_scores,
    right_items,
)


def listed(pairs, queries):
    """Right items by a list of (query, item)."""
    pairs = pairs[pairs[:, 0].argsort(stable=True)]
    ends = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(pairs[:, 0], minlength=queries).cumsum(0)])
    return RightItems(torch.arange(queries), torch.arange(queries + 1), pairs[:, 1], ends)


def both_listed(pairs, images, texts):
    return Right(listed(pairs, images), listed(pairs.flip(1), texts))


def as_pairs(right):
    return sorted(torch.stack(right.pairs(0, len(right)), 1).tolist())


def recalls(image, text, right):
    """Shares of queries answered among the first k, both ways, their mean at 1, and chance at 1."""
    found = {}
    for name, where in zip(("i2t", "t2i"), both_ways(image, text, right)):
        found |= {f"{name} R@{k}": (where < k).double().mean().item() for k in (1, 5, 10)}
    found["mean R@1"] = (found["i2t R@1"] + found["t2i R@1"]) / 2
    return found | {"chance R@1": chance_recall(right.texts, len(text), 1)}


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
    assert ranks(queries, gallery, listed(right, 23), chunk=5).tolist() == slow_ranks(queries, gallery, right)


def test_a_hand_worked_case():
    image = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    text = F.normalize(torch.tensor([[1.0, 0.1], [0.2, 1.0], [1.0, 0.9]]), dim=1)
    # The third caption describes image 1 but looks like image 0.
    right = both_listed(torch.tensor([[0, 0], [1, 1], [1, 2]]), 2, 3)
    found = recalls(image, text, right)
    assert found["i2t R@1"] == 1.0
    assert abs(found["t2i R@1"] - 2 / 3) < 1e-12
    assert found["t2i R@5"] == 1.0
    assert abs(found["chance R@1"] - 3 / 6) < 1e-12


def test_equal_captions_are_right_for_every_image_that_has_them():
    texts, right = right_items([["a red cat", "a cat"], ["A  red cat"], ["a dog"]])
    assert texts == ["a red cat", "a cat", "A  red cat", "a dog"]
    assert as_pairs(right.texts) == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 2], [2, 3]]
    assert as_pairs(right.images) == [[0, 0], [0, 1], [1, 0], [2, 0], [2, 1], [3, 2]]
    assert right.texts.counts().tolist() == [3, 2, 1] and right.images.counts().tolist() == [2, 1, 2, 1]
    assert right.texts.of(0) == {0, 1, 2}
    assert [part.tolist() for part in right.texts.pairs(1, 3)] == [[0, 0, 1], [0, 2, 3]]


def test_right_items_follow_the_loops():
    draw = torch.Generator().manual_seed(5)
    captions = [[f"{int(w)}" for w in torch.randint(0, 9, (1 + i % 4,), generator=draw)] for i in range(30)]
    for equal in (True, False):
        texts, right = right_items(captions, equal)
        owner = [i for i, group in enumerate(captions) for _ in group]
        expected = [
            [i, t]
            for i, group in enumerate(captions)
            for t, text in enumerate(texts)
            if (text in group if equal else owner[t] == i)
        ]
        assert as_pairs(right.texts) == expected
        assert as_pairs(right.images) == sorted([t, i] for i, t in expected)


def test_a_caption_that_thousands_of_images_share_is_no_matter():
    image = F.normalize(torch.randn(6000, 4, generator=torch.Generator().manual_seed(6)), dim=1)
    _, right = right_items([["a shoe"]] * 6000)
    assert len(right.texts.ids) + len(right.texts.items) == 12_000  # not the 36 million pairs
    assert ranks(image[:50], image, right.texts).max() == 0 and right.images.counts().unique().tolist() == [6000]


def test_random_embeddings_score_at_chance_and_collapsed_ones_too():
    generator = torch.Generator().manual_seed(1)
    n = 2000
    image = F.normalize(torch.randn(n, 16, generator=generator), dim=1)
    text = F.normalize(torch.randn(n, 16, generator=generator), dim=1)
    right = both_listed(torch.arange(n)[:, None].expand(n, 2), n, n)
    found = recalls(image, text, right)
    for name in ("i2t R@10", "t2i R@10"):
        assert abs(found[name] - 10 / n) < 4 * (10 / n / n) ** 0.5
    collapsed = recalls(image[:1].expand(n, 16), text[:1].expand(n, 16), right)
    assert collapsed["i2t R@1"] == 1 / n


def test_identical_embeddings_score_everything():
    rows = F.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(2)), dim=1)
    found = recalls(rows, rows, both_listed(torch.arange(50)[:, None].expand(50, 2), 50, 50))
    assert found["mean R@1"] == 1.0


def test_equal_captions_may_count_as_different():
    texts, right = right_items([["a cat", "a cat"], ["a cat"]], equal_captions=False)
    assert texts == ["a cat"] * 3 and as_pairs(right.texts) == [[0, 0], [0, 1], [1, 2]]


def test_chance_is_the_share_of_draws_that_hit():
    right = listed(torch.tensor([[0, 0], [0, 1], [0, 2], [1, 3]]), 2)  # 3 and 1 right items of 9
    for k in (1, 5, 8, 9):
        expected = sum(1 - comb(9 - r, k) / comb(9, k) for r in (3, 1)) / 2
        assert chance_recall(right, 9, k) == pytest.approx(expected)
    assert chance_recall(right, 9, 20) == 1.0


def test_scores_agree_with_recalls_and_their_items_with_both():
    generator = torch.Generator().manual_seed(3)
    captions = [[f"caption {i} {c}" for c in range(1 + i % 3)] for i in range(40)]
    count = sum(map(len, captions))
    image = F.normalize(torch.randn(40, 5, generator=generator), dim=1)
    text = F.normalize(torch.randn(count, 5, generator=generator), dim=1)
    expected = recalls(image, text, right_items(captions)[1])
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


def test_images_with_the_same_captions_are_drawn_together():
    """40 images have four names, and only "name 0" finds its images: the interval is that of four draws, not of 40."""
    captions = [["A dog"], ["a  dog"], ["a cat", "on a mat"], ["On a mat", "a cat"], ["a cat"]]
    assert alike(captions).tolist() == [0, 0, 1, 1, 2] and alike([[], ["a"], [], ["A"]]).tolist() == [0, 1, 2, 1]
    names = [[f"name {i % 4}"] for i in range(40)]
    image = F.one_hot(torch.arange(40) % 4, 4).float()
    text = image.clone()
    text[torch.arange(40) % 4 != 0] = torch.tensor([1.0, 0.0, 0.0, 0.0])  # every name finds images of name 0
    found = {score.name: score for score in retrieval_scores(image, text, names)}["t2i R@1"]
    assert found.value == 0.25 and found.clusters.tolist() == [i % 4 for i in range(40)]
    together, one_by_one = interval(found.items, found.clusters), interval(found.items)
    assert together == (0.0, 0.75) and one_by_one[0] > 0.1 and one_by_one[1] <= 0.4
