"""InfoNCE, CyCLIP, ALIP and the cone, against figures of the public code and slow forms; rows of length one."""

import math

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.config import LossSettings
from dinorankclip.losses.contrastive import (
    alip_weights,
    cone_separation,
    cyclip_consistency,
    cyclip_rows,
    info_nce,
    info_nce_rows,
    unit_rows,
)
from dinorankclip.losses.objective import Objective
from dinorankclip.types import Embeddings, Progress
from tests.golden import SCALE, pairs


def test_info_nce_of_the_fixture_and_as_loops():
    image, text, _ = pairs()
    assert info_nce(image, text, SCALE).item() == pytest.approx(0.236434, abs=1e-6)
    v, t = F.normalize(image, dim=1).tolist(), F.normalize(text, dim=1).tolist()
    dot = [[SCALE * sum(a * b for a, b in zip(x, y)) for y in t] for x in v]
    loops = sum(
        math.log(sum(math.exp(dot[i][j]) for j in range(4)))
        + math.log(sum(math.exp(dot[j][i]) for j in range(4)))
        - 2 * dot[i][i]
        for i in range(4)
    )
    assert info_nce(image, text, SCALE).item() == pytest.approx(loops / 8, abs=1e-12)


def test_info_nce_by_rows_of_two_processes():
    image, text, _ = pairs()
    v, t = F.normalize(image, dim=1), F.normalize(text, dim=1)
    halves = [info_nce_rows(v, t, SCALE, own) for own in (slice(0, 2), slice(2, 4))]
    assert torch.cat(halves).mean().item() == pytest.approx(info_nce(image, text, SCALE).item(), abs=1e-12)
    halves = [torch.stack(cyclip_rows(v, t, own), 1) for own in (slice(0, 2), slice(2, 4))]
    assert torch.cat(halves).mean(0).tolist() == pytest.approx([x.item() for x in cyclip_consistency(image, text)])


def test_info_nce_gradients():
    image, text, _ = (x.requires_grad_() for x in pairs())
    scale = torch.tensor(SCALE, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(info_nce, (image, text, scale))
    both = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: info_nce_rows(x[0], x[1], 3.0, slice(1, 4)), both)


def test_half_precision_embeddings_are_compared_in_single():
    image, text, _ = pairs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = info_nce(image, text, 100.0)
    assert torch.equal(value, info_nce(image, text, 100.0))


def test_cyclip_of_the_fixture():
    image, text, _ = pairs()
    in_modal, cross = cyclip_consistency(image, text)
    assert in_modal.item() == pytest.approx(0.349693, abs=1e-6)
    assert cross.item() == pytest.approx(0.400298, abs=1e-6)


def dot(x, y):
    return sum(a * b for a, b in zip(x, y))


def test_cyclip_as_loops():
    image, text, _ = pairs()
    v, t = F.normalize(image, dim=1).tolist(), F.normalize(text, dim=1).tolist()
    each = [(i, j) for i in range(4) for j in range(4)]
    in_modal = sum((dot(v[i], v[j]) - dot(t[i], t[j])) ** 2 for i, j in each) / 4
    cross = sum((dot(v[i], t[j]) - dot(t[i], v[j])) ** 2 for i, j in each) / 4
    assert [x.item() for x in cyclip_consistency(image, text)] == pytest.approx([in_modal, cross], abs=1e-12)


def test_cyclip_by_hand_and_its_gradients():
    # orthogonal images, equal captions: of four cosines in each modality two differ by 1, hence 2/N = 1
    image, text = torch.eye(2, dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64)
    in_modal, cross = cyclip_consistency(image, text)
    assert (in_modal.item(), cross.item()) == (pytest.approx(1), pytest.approx(0))
    assert torch.autograd.gradcheck(cyclip_consistency, tuple(x.requires_grad_() for x in pairs()[:2]))


def test_alip_weights_of_the_fixture():
    i, t, c = (F.normalize(x, dim=1) for x in pairs())
    cosines = torch.stack([(t * c).sum(1), (t * i).sum(1), (c * i).sum(1)])
    thresholds = 0.99 + 0.01 * cosines.mean(1)  # after the first batch has moved them from 1
    sample, of_text, of_second = alip_weights(*cosines, thresholds)
    assert sample.tolist() == pytest.approx([0.887943, 0.739961, 0.088512, 0.477853], abs=1e-6)
    assert of_text.tolist() == pytest.approx([0.987281, 0.881313, 0.864973, 0.718390], abs=1e-6)
    assert of_second.tolist() == pytest.approx([0.936291, 0.960017, 0.087930, 0.915501], abs=1e-6)


def test_alip_trusts_samples_whose_captions_agree():
    high, low = torch.tensor([0.9]), torch.tensor([0.1])
    sample, of_text, of_second = alip_weights(high, low, low, torch.full((3,), 0.5))
    assert (sample.item(), of_text.item(), of_second.item()) == (1, 1, 1)


def test_cone_separation_in_degrees():
    image = torch.tensor([[2.0, 0.0], [5.0, 0.0]])
    assert cone_separation(image, torch.tensor([[0.0, 3.0]])).item() == pytest.approx(90, abs=1e-4)
    assert cone_separation(image, torch.tensor([[1.0, 1.0]])).item() == pytest.approx(45, abs=1e-4)
    assert cone_separation(image, image).item() == pytest.approx(0, abs=1e-4)
    assert cone_separation(image, -image).item() == pytest.approx(180, abs=1e-4)


def draw(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def test_unit_rows_by_hand():
    rows = torch.tensor([[3.0, 4.0], [0.0, -2.0], [0.0, 0.0], [1e-9, 0.0]])
    torch.testing.assert_close(unit_rows(rows), torch.tensor([[0.6, 0.8], [0.0, -1.0], [0.0, 0.0], [0.0, 0.0]]))
    assert unit_rows(torch.tensor([3.0, 4.0])).tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_with_a_direction_are_divided_by_their_length_bit_for_bit(dtype):
    rows, incoming = 10 ** draw(500, 1, dtype=dtype) * draw(500, 33, dtype=dtype, seed=1), draw(500, 33, seed=2)
    results = []
    for function in (unit_rows, lambda x: F.normalize(x, dim=-1)):
        leaf = rows.clone().requires_grad_()
        out = function(leaf)
        out.backward(incoming.to(dtype))
        results.append((out.detach(), leaf.grad))
    assert all(torch.equal(ours, usual) for ours, usual in zip(*results))


def test_gradients_of_unit_rows():
    assert torch.autograd.gradcheck(unit_rows, draw(5, 4).requires_grad_())
    assert torch.autograd.gradgradcheck(unit_rows, draw(3, 4).requires_grad_())


@pytest.mark.parametrize("length", [0.0, 1e-10])
def test_a_row_without_a_direction_gets_no_gradient_and_the_others_theirs(length):
    """One such row among six at s = 100. It is the same distance from all: others have the gradient of that."""
    image, text = draw(6, 8, dtype=torch.float32).requires_grad_(), draw(6, 8, dtype=torch.float32, seed=1)
    with torch.no_grad():
        image[2] *= length / image[2].norm()
    info_nce(image, text, 100.0).backward()
    assert image.grad[2].tolist() == [0.0] * 8
    others = [n for n in range(6) if n != 2]
    logits = torch.zeros(6, 6, dtype=torch.float64)
    leaf = image.detach().double()[others].requires_grad_()
    logits[others] = 100.0 * F.normalize(leaf, dim=1) @ F.normalize(text.double(), dim=1).T
    own = torch.arange(6)
    ((F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2).backward()
    assert image.grad[others].abs().max() < 100
    torch.testing.assert_close(image.grad[others].double(), leaf.grad, rtol=1e-4, atol=1e-5)


def test_two_captions_have_half_of_the_weight_each():
    """Equal captions give CLIP's loss; others the mean of two, with a gradient to each."""
    image, first, second = pairs()
    clip, both = Objective(3, "clip"), Objective(3, "clip", LossSettings(two_captions=True))
    scale, start = torch.tensor(SCALE, dtype=image.dtype), Progress(0, 10, 1)

    def named(**texts):
        return Embeddings({"image": image} | texts)

    plain = clip(named(text=first), scale, start).total.item()
    assert both(named(text=first, second_text=first), scale, start).total.item() == pytest.approx(plain, abs=1e-12)
    rows = first.clone().requires_grad_(), second.clone().requires_grad_()
    found = both(named(text=rows[0], second_text=rows[1]), scale, start)
    wanted = info_nce(image, first, SCALE).item(), info_nce(image, second, SCALE).item()
    assert [found.terms[name].item() for name in ("contrastive", "contrastive_second")] == pytest.approx(
        [value / 2 for value in wanted], abs=1e-12
    )
    found.total.backward()
    assert all(row.grad is not None and row.grad.abs().sum() > 0 for row in rows)
    with pytest.raises(ValueError, match="the batch has no second captions"):
        both(named(text=first), scale, start)
