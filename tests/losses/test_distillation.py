"""Each criterion against plain loops, a value known by hand, gradcheck, and its degenerate cases."""

import itertools
import math

import pytest
import torch

from dinorankclip.losses.distillation import (
    cosine_gram,
    cosine_loss,
    crd_loss,
    gram_distance,
    gram_loss,
    gram_loss_to,
    mse_loss,
    normalise_gram,
    rkd_items,
    rkd_loss,
)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def cos(a, b):
    length = float(a.norm() * b.norm())
    return float(a @ b) / length if length else 0.0


def huber(a, b):
    gap = abs(a - b)
    return gap * gap / 2 if gap < 1 else gap - 0.5


def gram_oracle(student, teacher, mask, reduction):
    total = 0.0
    for s, t, m in zip(student, teacher, mask):
        visible = [i for i in range(len(m)) if m[i]]
        if len(visible) < 2:
            continue
        squares = sum((cos(s[i], s[j]) - cos(t[i], t[j])) ** 2 for i in visible for j in visible)
        total += squares / (len(visible) ** 2 if reduction == "mean" else 1)
    return total / len(student)


def rkd_oracle(student, teacher):
    n = len(student)
    pairs, triples = list(itertools.permutations(range(n), 2)), list(itertools.permutations(range(n), 3))
    mean_s = sum(float((student[i] - student[j]).norm()) for i, j in pairs) / len(pairs)
    mean_t = sum(float((teacher[i] - teacher[j]).norm()) for i, j in pairs) / len(pairs)
    distance = sum(
        huber(float((student[i] - student[j]).norm()) / mean_s, float((teacher[i] - teacher[j]).norm()) / mean_t)
        for i, j in pairs
    )
    angle = sum(
        huber(
            cos(student[i] - student[j], student[k] - student[j]), cos(teacher[i] - teacher[j], teacher[k] - teacher[j])
        )
        for i, j, k in triples
    )
    return distance / len(pairs) + 2 * angle / max(1, len(triples))


MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gram_loss_equals_the_loops(reduction):
    student, teacher = draw(4, 5, 3), draw(4, 5, 7, seed=1)
    whole = torch.ones(4, 5, dtype=torch.bool)
    for mask, given in ((whole, None), (whole, whole), (MASK, MASK)):
        ours = gram_loss(student, teacher, given, reduction)
        assert ours.item() == pytest.approx(gram_oracle(student, teacher, mask, reduction), abs=1e-12)


def test_gram_loss_by_hand():
    # Orthogonal student tokens, equal teacher tokens: two of four entries differ by 1.
    student, teacher = torch.eye(2)[None] * 3, torch.ones(1, 2, 4)
    assert gram_loss(student, teacher).item() == pytest.approx(0.5)
    assert gram_loss(student, teacher, reduction="sum").item() == pytest.approx(2.0)
    assert gram_distance(cosine_gram(student), cosine_gram(teacher)).item() == pytest.approx(math.sqrt(2) / 2)


def test_gram_distance_equals_the_loops_and_is_no_number_without_a_teacher():
    student, teacher = cosine_gram(draw(4, 5, 3), MASK), cosine_gram(draw(4, 5, 7, seed=1), MASK)
    distances = gram_distance(student, teacher).tolist()
    for b in range(3):
        off = sum((student[b, i, j] - teacher[b, i, j]).item() ** 2 for i in range(5) for j in range(5))
        size = sum(teacher[b, i, j].item() ** 2 for i in range(5) for j in range(5))
        assert distances[b] == pytest.approx(math.sqrt(off / size), abs=1e-12)
    assert math.isnan(distances[3])  # no token: nothing to be near to
    assert gram_distance(torch.zeros(1, 5, 5), teacher[:1]).item() == pytest.approx(1)
    assert gram_distance(student[:1], torch.zeros(1, 5, 5)).isnan().all()


def test_gram_loss_from_a_ready_gram():
    student, teacher = draw(4, 5, 3), draw(4, 5, 7, seed=1) * torch.arange(1, 6)[:, None]
    ready = teacher @ teacher.transpose(1, 2)
    torch.testing.assert_close(normalise_gram(ready), cosine_gram(teacher))
    for mask in (None, MASK):
        torch.testing.assert_close(gram_loss_to(student, ready, mask), gram_loss(student, teacher, mask))


def test_gram_gradients():
    student, teacher = draw(4, 5, 3).requires_grad_(), draw(4, 5, 7, seed=1).requires_grad_()
    for mask in (None, MASK):
        assert torch.autograd.gradcheck(lambda s, m=mask: gram_loss(s, teacher, m), student)
    gram_loss(student, teacher).backward()
    assert teacher.grad is None


def test_padding_and_zero_tokens_send_nothing():
    student, teacher = draw(4, 5, 3, dtype=torch.float32), draw(4, 5, 7, seed=1, dtype=torch.float32)
    expected = gram_loss(student, teacher, MASK)
    hole = ~MASK[..., None]
    student = student.masked_fill(hole, float("nan")).requires_grad_()
    teacher = teacher.masked_fill(hole, float("nan"))
    for loss in (
        gram_loss(student, teacher, MASK),
        gram_loss_to(student, teacher @ teacher.transpose(1, 2), MASK),
        mse_loss(student, teacher[..., :3], MASK),
        cosine_loss(student, teacher[..., :3], MASK),
    ):
        student.grad = None
        loss.backward()
        assert loss.isfinite() and student.grad.isfinite().all()
        assert not student.grad.masked_select(hole).any()
    torch.testing.assert_close(gram_loss(student, teacher, MASK), expected)
    for loss in (gram_loss, mse_loss, cosine_loss):
        zero = torch.zeros(2, 3, 4, requires_grad=True)
        loss(zero, torch.zeros(2, 3, 4)).backward()
        assert zero.grad.isfinite().all() and zero.grad.abs().max() < 10


def test_fewer_than_two_words_cost_nothing():
    student, teacher = draw(2, 4, 3).requires_grad_(), draw(2, 4, 3, seed=1)
    for reduction in ("mean", "sum"):
        loss = gram_loss(student, teacher, torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0]]).bool(), reduction)
        loss.backward()
        assert loss.item() == 0 and not student.grad.any()


def test_half_precision_is_computed_in_single():
    student, teacher = draw(2, 5, 64, dtype=torch.float32), draw(2, 5, 64, seed=1, dtype=torch.float32)
    half_student, half_teacher = student.bfloat16(), teacher.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        losses = [
            gram_loss(half_student, half_teacher),
            rkd_loss(half_student[0], half_teacher[0]),
            crd_loss(half_student[0], half_teacher[0]),
        ]
    assert all(loss.dtype == torch.float32 for loss in losses)
    expected = gram_loss(half_student.float(), half_teacher.float())
    torch.testing.assert_close(losses[0], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_rkd_equals_the_loops(n):
    student, teacher = draw(n, 3) * 5 + 10, draw(n, 4, seed=1)
    assert rkd_loss(student, teacher).item() == pytest.approx(rkd_oracle(student, teacher), abs=1e-10)


def test_rkd_by_hand():
    # On a line at 0, 1, 2 against an equilateral triangle. Distances 1, 1, 2 over their mean 4/3 against 1, 1, 1.
    # Cosines: at the ends 1, in the middle -1, against 1/2 everywhere; huber(-1, 1/2) = 1.
    line = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    triangle = torch.tensor([[0, 0], [1, 0], [0.5, math.sqrt(3) / 2]], dtype=torch.float64)
    distance = (2 * 0.25**2 / 2 + 0.5**2 / 2) / 3
    angle = (2 * 0.5**2 / 2 + 1.0) / 3
    assert rkd_loss(line, triangle).item() == pytest.approx(distance + 2 * angle)


def test_rkd_ignores_motion_and_scale_and_survives_a_common_part():
    items = draw(12, 5)
    turn = torch.linalg.qr(draw(5, 5, seed=2))[0]
    assert rkd_loss(items @ turn * 7 + 3, items).item() == pytest.approx(0, abs=1e-12)
    student, teacher = draw(12, 5, seed=3), items
    expected = rkd_oracle(student, teacher)
    moved = (student.float() + 100).requires_grad_()  # single precision keeps 5 digits of the spread here
    loss = rkd_loss(moved, teacher.float())
    assert loss.item() == pytest.approx(expected, rel=1e-3)


def test_rkd_gradients_and_coinciding_items():
    student, teacher = draw(5, 3).requires_grad_(), draw(5, 4, seed=1)
    assert torch.autograd.gradcheck(lambda s: rkd_loss(s, teacher), student)
    for items in (torch.ones(4, 3), draw(1, 3).float(), draw(2, 3).float()[[0, 1, 0, 1]], torch.zeros(0, 3)):
        items = items.clone().requires_grad_()
        rkd_loss(items, draw(len(items), 6).float()).backward()
        assert items.grad.isfinite().all()


def test_rkd_items_depend_on_seed_and_step_alone():
    chosen = rkd_items(1000, 3, 17)
    assert torch.equal(chosen, rkd_items(1000, 3, 17))
    assert len(chosen) == 128 and chosen.unique().numel() == 128 and torch.equal(chosen, chosen.sort().values)
    assert not torch.equal(chosen, rkd_items(1000, 3, 18)) and not torch.equal(chosen, rkd_items(1000, 4, 17))
    assert torch.equal(rkd_items(100, 0, 0), torch.arange(100))


def test_token_losses_equal_the_loops():
    student, teacher = draw(4, 5, 3), draw(4, 5, 3, seed=1)
    squares = cosines = 0.0
    for s, t, m in zip(student, teacher, MASK):
        visible = [i for i in range(5) if m[i]]
        for i in visible:
            squares += float(((s[i] - t[i]) ** 2).sum()) / 3 / len(visible)
            cosines += (1 - cos(s[i], t[i])) / len(visible)
    assert mse_loss(student, teacher, MASK).item() == pytest.approx(squares / 4)
    assert cosine_loss(student, teacher, MASK).item() == pytest.approx(cosines / 4)
    torch.testing.assert_close(mse_loss(student, teacher), torch.nn.functional.mse_loss(student, teacher))
    assert cosine_loss(torch.tensor([[[1.0, 0]]]), torch.tensor([[[0.0, 5]]])).item() == pytest.approx(1)


def test_crd_equals_the_loops():
    student, teacher = draw(6, 3), draw(6, 3, seed=1)
    total = 0.0
    for i in range(6):
        own = cos(student[i], teacher[i]) / 0.07
        total += math.log(sum(math.exp(cos(student[i], teacher[j]) / 0.07) for j in range(6))) - own
        total += math.log(sum(math.exp(cos(student[j], teacher[i]) / 0.07) for j in range(6))) - own
    assert crd_loss(student, teacher).item() == pytest.approx(total / 12)
    # Two orthogonal pairs, perfectly matched: log(1 + e^(-1/τ)).
    assert crd_loss(torch.eye(2), torch.eye(2), 0.5).item() == pytest.approx(math.log(1 + math.exp(-2)))


@pytest.mark.parametrize("loss", [mse_loss, cosine_loss, crd_loss])
def test_other_gradients_stop_at_the_teacher(loss):
    shape = (4, 3) if loss is crd_loss else (2, 4, 3)
    student, teacher = draw(*shape).requires_grad_(), draw(*shape, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: loss(s, teacher.detach()), student)
    loss(student, teacher).backward()
    assert teacher.grad is None
