"""Teacher–student fidelity on cases whose answer is known."""

import pytest
import torch

from dinorankclip.scoring.fidelity import Sides, fidelity, ridge


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sides(count, seed, noise=0.0, unrelated=False):
    """The teacher is an affine function of the student, plus noise; or has nothing to do with it."""
    student = draw(count, 8, seed=seed)
    mapped = student @ draw(8, 5, seed=99) + 3 + noise * draw(count, 5, seed=seed + 50)
    return Sides(student, draw(count, 5, seed=seed + 70) + 3 if unrelated else mapped, torch.empty(0))


def test_an_affine_teacher_is_met_exactly():
    found = fidelity(sides(200, 1), sides(50, 2), sides(50, 3))
    assert found.cosine.min() > 0.9999 and found.centred_cosine.min() > 0.9999
    assert found.cosine_of_mean.mean() < 0.95


def test_a_student_that_knows_nothing_scores_like_the_mean():
    found = fidelity(sides(400, 1, unrelated=True), sides(200, 2, unrelated=True), sides(200, 3, unrelated=True))
    assert found.numbers()["cosine"] == pytest.approx(found.numbers()["cosine of the mean"], abs=0.02)
    assert found.numbers()["cosine"] > 0.9  # which is why a raw cosine alone would flatter
    assert abs(found.numbers()["centred cosine"]) < 0.2


def test_ridge_is_the_textbook_solution_and_is_chosen_on_validation():
    train, val = sides(30, 1, noise=2.0), sides(500, 2)
    mapping, penalty = ridge(train.student, train.teacher, val.student, val.teacher)
    x = (train.student - train.student.mean(0)).double()
    y = (train.teacher - train.teacher.mean(0)).double()
    size = (x.T @ x).diagonal().mean()
    weight = torch.linalg.solve(x.T @ x + penalty * size * torch.eye(8, dtype=torch.double), x.T @ y)
    expected = (val.student - train.student.mean(0)).double() @ weight + train.teacher.mean(0)
    torch.testing.assert_close(mapping(val.student), expected.float(), atol=1e-5, rtol=1e-5)
    assert penalty > 1e-6  # noise calls for more than the least penalty
