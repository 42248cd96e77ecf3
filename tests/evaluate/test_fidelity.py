"""Teacher–student fidelity on cases whose answer is known."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.evaluate.fidelity import OwnProjector, Sides, collect, fidelity, ridge
from dinorankclip.types import RawSample


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


class Captions(list):
    def read(self, index):
        return self[index]


WORDS_OF = {"red cat dog": [0, 1, 2, -1], "cat": [0, -1, -1, -1], "": [-1, -1, -1, -1], "a boat": [0, 1, -1, -1]}


def caption_sides(projector=None, token_width=6):
    """Four captions, of three words, one, none and two; student and teacher are random tokens."""
    captions = list(WORDS_OF)
    ids = torch.tensor(list(WORDS_OF.values()))
    student, teacher = draw(4, 4, 5), draw(4, 3, token_width, seed=1)
    reported = {
        "text_gram": teacher @ teacher.mT,
        "text_tokens": teacher,
        "text_summary": draw(4, 7, seed=2),
        "text_mask": torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]]).bool(),
        "text_word_ids": ids,
    }
    seen = SimpleNamespace(tokens=student, summary=draw(4, 8, seed=3))
    model = SimpleNamespace(
        device="cpu", trunk=SimpleNamespace(image_spec=SimpleNamespace(size=8)), learnt=lambda branch, ids: seen
    )
    cache = SimpleNamespace(check_data=lambda source: None, texts=lambda asked: reported)
    source = Captions(RawSample(str(n), b"", (caption,)) for n, caption in enumerate(captions))
    projector = projector or OwnProjector(torch.nn.Linear(5, 6), of_tokens=True)
    return collect(model, cache, source, "text", tokenizer=lambda asked: ids, projector=projector)


def test_a_projector_of_summaries_is_not_taken_for_one_of_tokens_of_the_same_width():
    layer = torch.nn.Linear(8, 7)
    found = caption_sides(OwnProjector(layer, of_tokens=False), token_width=7)
    expected = F.cosine_similarity(layer(draw(4, 8, seed=3)), draw(4, 7, seed=2), dim=-1)
    torch.testing.assert_close(found.own_cosine, expected.detach())


def test_captions_with_nothing_to_compare_are_left_out_and_counted():
    found = caption_sides()
    assert found.gram_distance.isnan().tolist() == [False, True, True, False]  # one word has no relations
    assert found.own_cosine.isnan().tolist() == [False, False, True, False]
    measured = fidelity(sides(50, 1), sides(50, 2), sides(4, 3))
    measured.held_out = found
    numbers = measured.numbers()
    assert numbers["gram distance"] == pytest.approx(found.gram_distance[[0, 3]].mean().item())
    assert numbers["own projector's cosine"] == pytest.approx(found.own_cosine[[0, 1, 3]].mean().item())
    assert (numbers["gram distance, n"], numbers["own projector's cosine, n"]) == (2, 3)
    score = {one.name: one for one in measured.scores("text")}["text gram distance"]
    assert score.n == 2 and score.value == pytest.approx(numbers["gram distance"])


def test_without_any_caption_to_compare_there_is_no_number():
    measured = fidelity(sides(50, 1), sides(50, 2), sides(4, 3))
    measured.held_out.gram_distance = torch.full((4,), torch.nan)
    assert not any(name.startswith("gram distance") for name in measured.numbers())
    assert "text gram distance" not in {one.name for one in measured.scores("text")}
