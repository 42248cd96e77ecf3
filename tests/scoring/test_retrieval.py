import torch
import torch.nn.functional as F

from dinorankclip.scoring.retrieval import ranks, recalls, right_pairs


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
