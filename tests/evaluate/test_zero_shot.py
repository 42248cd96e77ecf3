"""Zero-shot classification, and its drop on renditions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dinorankclip.data.benchmark_sets import SetLocation, open_set
from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.evaluate.scores import EmbeddedSet, average_score, mean_score, with_intervals
from dinorankclip.evaluate.zero_shot import (
    Shift,
    class_embeddings,
    hits,
    mean_and_drop,
    per_class_weights,
    predictions,
    prompts,
    restricted_top1,
    shared_classes,
    shift_scores,
    standing,
    unlike,
)
from tests.set_making import ColourModel, write_classes


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


def see(folder, **making):
    return EmbeddedSet(open_set(SetLocation(folder.name, str(write_classes(folder, **making)))), "test", ColourModel(),
                   EmbeddingStore(None))  # fmt: skip


def test_by_hand():
    base, easy, hard = np.array([1, 1, 1, 0.0]), np.array([1.0, 0]), np.array([0, 0, 1, 0, 0.0])
    mean, drop, relative = mean_and_drop([(base, easy), (base, hard)])
    assert mean.value == pytest.approx((0.5 + 0.2) / 2) and mean.n == 7
    assert drop.value == pytest.approx(0.75 - 0.35) and drop.n == 4 + 7  # the base's images once
    assert relative.value == pytest.approx(1 - 0.35 / 0.75)
    for score in (mean, drop, relative):
        assert score.items.mean() == pytest.approx(score.value)


def test_the_spread_of_items_is_that_of_the_drop():
    """Standard error of the items' mean against the textbook's for a difference of independent means."""
    draws = np.random.default_rng(0)
    base, other = (draws.random(4000) < 0.8).astype(float), (draws.random(1000) < 0.5).astype(float)
    _, drop, _ = mean_and_drop([(base, other)])
    expected = np.sqrt(base.var() / 4000 + other.var() / 1000)
    assert drop.items.std() / np.sqrt(drop.n) == pytest.approx(expected, rel=1e-6)
    found = next(iter(with_intervals([drop])))
    assert found.high - found.low == pytest.approx(2 * 1.96 * expected, rel=0.1)


def test_random_embeddings_drop_by_nothing(tmp_path):
    seen = {}
    for number, name in enumerate(("base", "other")):
        seen[name] = see(tmp_path / name, labels=tuple(n % 4 for n in range(400)))
        draw = torch.Generator().manual_seed(number)
        rows = F.normalize(torch.randn(400, 16, generator=draw), dim=1)
        seen[name].images = lambda kind="embedding", split=None, rows=rows: rows
        seen[name].texts = lambda texts: F.normalize(torch.randn(len(texts), 16, generator=torch.Generator()), dim=1)
    found = {score.name: score for score in shift_scores(Shift("base", ("other",)), seen)}
    noise = 3 * (0.25 * 0.75 / 400) ** 0.5
    assert found["T@1 other"].value == pytest.approx(0.25, abs=noise)
    assert found["drop"].value == pytest.approx(0, abs=1.5 * noise)


def test_sets_of_the_same_classes(tmp_path):
    seen = {"base": see(tmp_path / "base"), "other": see(tmp_path / "other", labels=(3, 3, 1))}
    found = {score.name: score for score in shift_scores(Shift("base", ("other", "missing")), seen)}
    assert found["T@1 other"].value == 1.0 and found["T@1 other"].n == 3
    assert found["drop"].value == 0.0 and found["relative drop"].value == 0.0


def test_a_rendition_with_some_of_the_classes_meets_a_base_restricted_to_them(tmp_path):
    base = see(tmp_path / "base", labels=(0, 0, 1, 2, 3))
    part = see(tmp_path / "part", labels=(1, 0), names=("boat", "cat"))  # by name, in another order
    assert shared_classes(base, part) == (0, 2)
    assert restricted_top1(base, (0, 2)).tolist() == [1, 1, 1]  # images of cats and boats alone
    assert unlike(base, part) == "" and "has classes that part has not: dog, tree" in unlike(part, base)


def test_a_name_that_the_base_has_twice_is_taken_as_often_as_the_rendition_has_it(tmp_path):
    base = see(tmp_path / "base", labels=(0, 1, 2, 3), names=("missile", "cat", "missile", "dog"))
    assert shared_classes(base, see(tmp_path / "part", labels=(0, 1), names=("missile", "dog"))) == (0, 3)
    assert shared_classes(base, base) == (0, 1, 2, 3)


def test_an_average_over_sets_counts_them_alike():
    scores = [mean_score("x", np.ones(10)), mean_score("x", np.zeros(1000))]
    found = average_score("mean", scores)
    assert found.value == 0.5 and found.items.mean() == pytest.approx(0.5) and found.n == 1010
