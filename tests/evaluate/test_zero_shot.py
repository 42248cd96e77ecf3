"""Zero-shot: hand-worked cases, chance, ties, and the slow form."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dinorankclip.evaluate.scores import mean_score
from dinorankclip.evaluate.zero_shot import class_embeddings, hits, per_class_weights, predictions, prompts, standing


def draw(*shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def accuracy(images, classes, labels, k=1):
    return hits(*standing(images, classes, np.asarray(labels)), k).mean()


def test_prompts_are_normalised_averaged_and_normalised_again():
    assert prompts(("cat", "dog"), ("a {c}", "{c}s")) == ["a cat", "cats", "a dog", "dogs"]
    rows = torch.tensor([[2.0, 0.0], [0.0, 5.0], [3.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(class_embeddings(rows, 2), torch.tensor([[0.5**0.5, 0.5**0.5], [1.0, 0.0]]))


def test_a_hand_worked_case():
    classes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    images = F.normalize(torch.tensor([[1.0, 0.2], [1.0, 0.9], [0.1, 1.0], [-0.2, 1.0]]), dim=1)
    labels = [0, 1, 1, 2]  # right, second, right, second
    assert accuracy(images, classes, labels) == 0.5 and accuracy(images, classes, labels, 2) == 1.0
    assert predictions(images, classes).tolist() == [0, 0, 1, 1]
    # Recall 1 of class 0, 1/2 of class 1, 0 of class 2.
    labels = np.array(labels)
    score = mean_score("x", hits(*standing(images, classes, labels), 1), weights=per_class_weights(labels))
    assert score.value == pytest.approx(0.5)


def test_places_follow_the_loops():
    images, classes = draw(50, 6), draw(9, 6, seed=1)
    labels = np.random.default_rng(0).integers(0, 9, 50)
    for k in (1, 3, 5):
        expected = []
        for i in range(50):
            similarity = (images[i] @ classes.T).tolist()
            order = sorted(range(9), key=lambda c: -similarity[c])
            expected.append(labels[i] in order[:k])
        assert hits(*standing(images, classes, labels), k).tolist() == expected


def test_random_embeddings_score_at_chance():
    n, classes = 4000, 20
    labels = np.random.default_rng(1).integers(0, classes, n)
    for k in (1, 3, 5):
        share = k / classes
        found = accuracy(draw(n, 32), draw(classes, 32, seed=1), labels, k)
        assert abs(found - share) < 4 * (share * (1 - share) / n) ** 0.5


def test_a_collapsed_model_scores_exactly_at_chance_also_on_uneven_classes():
    labels = np.array([0] * 90 + [1] * 5 + [6] * 5)  # class 0 would win 90 % if ties favoured it
    row = draw(1, 512)
    for k in (1, 3, 5):
        assert accuracy(row.expand(100, 512), row.expand(7, 512), labels, k) == pytest.approx(k / 7)
    almost = F.normalize(row + 1e-9 * draw(100, 512, seed=3), dim=1)
    assert accuracy(almost, row.expand(7, 512), labels) == pytest.approx(1 / 7)


def test_identical_embeddings_score_everything():
    classes = draw(30, 8)
    labels = np.arange(30).repeat(2)
    assert accuracy(classes[labels], classes, labels) == 1.0
