"""The sigmoid loss: loops, a value by hand, open_clip's own, gradients, and memory that grows with rows alone."""

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.losses import sigmoid
from dinorankclip.losses.sigmoid import sigmoid_loss, sigmoid_rows
from tests.golden import SCALE, pairs

BIAS = -3.0


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def units(count, dim=6, dtype=torch.float64):
    return F.normalize(draw(count, dim, dtype=dtype), dim=1), F.normalize(draw(count, dim, seed=1, dtype=dtype), dim=1)


def test_the_sigmoid_loss_as_loops():
    image, text, _ = pairs()
    v, t = F.normalize(image, dim=1).tolist(), F.normalize(text, dim=1).tolist()
    total = 0.0
    for i in range(4):
        for j in range(4):
            logit = SCALE * sum(a * b for a, b in zip(v[i], t[j])) + BIAS
            total -= math.log(1 / (1 + math.exp(-logit if i == j else logit)))
    assert sigmoid_loss(image, text, SCALE, BIAS).item() == pytest.approx(total / 4, abs=1e-12)


def test_the_sigmoid_loss_by_hand():
    # orthogonal pairs, s = 10, b = -10: a match has logit 0, hence ln 2; each other pair has logit -10
    value = sigmoid_loss(torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64), 10.0, -10.0)
    assert value.item() == pytest.approx(math.log(2) + 2 * math.log1p(math.exp(-10)), abs=1e-12)


def test_a_confident_match_keeps_its_small_loss():
    # logit 30: log(1 + exp(-30)) is 9.4e-14, which a difference of numbers near 30 would lose
    one = torch.ones(1, 1)
    assert sigmoid_rows(one, one, 40.0, -10.0).item() == pytest.approx(math.exp(-30), rel=1e-4)


@pytest.mark.parametrize("block", [1 << 20, 40])  # 12 pairs: one block, or four blocks of three rows
def test_it_equals_open_clip(monkeypatch, block):
    loss = pytest.importorskip("open_clip.loss")
    monkeypatch.setattr(sigmoid, "BLOCK", block)
    found = []
    for ours in (True, False):
        image, text = (rows.requires_grad_() for rows in units(12, dtype=torch.float32))
        scale, bias = torch.tensor(12.0, requires_grad=True), torch.tensor(-8.0, requires_grad=True)
        if ours:
            value = sigmoid_rows(image, text, scale, bias).mean()
        else:
            value = loss.SigLipLoss()(image, text, scale, bias)
        value.backward()
        found.append([value.detach(), image.grad, text.grad, scale.grad, bias.grad])
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_gradients_and_blocks(monkeypatch):
    image, text = (rows.requires_grad_() for rows in units(7))
    scale, bias = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (9.0, -4.0))
    assert torch.autograd.gradcheck(sigmoid_rows, (image, text, scale, bias))
    whole = sigmoid_rows(image, text, scale, bias, slice(1, 6))
    monkeypatch.setattr(sigmoid, "BLOCK", 14)  # two rows of seven logits: blocks of 2, 2 and 1
    # Products of other shapes may round differently by the last bit; it depends on the processor.
    torch.testing.assert_close(sigmoid_rows(image, text, scale, bias, slice(1, 6)), whole, rtol=1e-14, atol=0)
    assert torch.autograd.gradcheck(lambda *x: sigmoid_rows(*x, slice(1, 6)), (image, text, scale, bias))


def saved_numbers(count: int) -> int:
    """Return how many numbers the graph of a batch keeps for backward."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor

    image, text = (rows.requires_grad_() for rows in units(count, dtype=torch.float32))
    scale, bias = torch.tensor(10.0, requires_grad=True), torch.tensor(-10.0, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        value = sigmoid_rows(image, text, scale, bias).mean()
    value.backward()
    assert image.grad is not None
    return sum(kept.values())


def test_the_graph_keeps_numbers_that_grow_as_the_batch_and_not_as_its_square(monkeypatch):
    monkeypatch.setattr(sigmoid, "BLOCK", 1 << 12)
    few, many = saved_numbers(256), saved_numbers(1024)
    assert many < 5 * few  # sixteen times as many logits
    assert many < 1024 * 1024 / 8


PEAK = """
import resource, sys, torch
from dinorankclip.losses.sigmoid import sigmoid_loss
torch.set_num_threads(1)
def step(count):
    image, text = torch.randn(2, count, 32).unbind()
    image.requires_grad_(); text.requires_grad_()
    scale, bias = torch.tensor([10.0, -10.0], requires_grad=True).unbind()
    sigmoid_loss(image, text, scale, bias).backward()
step(64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(8192)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
def test_a_batch_of_8192_needs_a_fraction_of_its_256_megabytes_of_logits():
    out = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert int(out.stdout) / 1024 < 80
