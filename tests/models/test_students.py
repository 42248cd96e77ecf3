"""Sizes, seeds, masks and gradients of the students."""

import pytest
import torch
from torch import nn

from dinorankclip.models.students import count, describe, image_student, stride_for, text_student, token_table
from dinorankclip.models.trunk import Trunk, trunk_config
from dinorankclip.types import UserError

START, END = 49406, 49407
PAPER = 5.7e6


def ids(*captions, length=8):
    rows = [[START, *caption, END] for caption in captions]
    return torch.tensor([row + [0] * (length - len(row)) for row in rows])


def test_the_papers_students_have_the_papers_size():
    image, text = image_student("vit-tiny", 224), text_student("vit-tiny", 77, 512)
    for student in (image, text):
        assert abs(count(student) / PAPER - 1) < 0.05
    assert image.grid == (14, 14) and image.width == text.width == 192
    assert describe("vit-tiny", image) == "vit-tiny: 5.52M parameters, 5.72M with a classifier of 1000 classes"
    assert describe("text", text).startswith("text: 5.4")


@pytest.mark.parametrize(
    ("name", "size", "grid", "width"),
    [
        ("vit-micro", 48, (6, 6), 64),
        ("vit-micro", 64, (8, 8), 64),
        ("vit-mini", 96, (8, 8), 96),
        ("mobilenetv3-large", 64, (8, 8), 960),
        ("resnet50", 64, (8, 8), 2048),
        ("resnet-micro", 48, (6, 6), 64),
        ("mobilenet-micro", 48, (6, 6), 64),
        ("mobilenet-micro", 64, (8, 8), 64),
    ],
)
def test_image_students(name, size, grid, width):
    student = image_student(name, size)
    seen = student(torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0)))
    assert student.grid == grid and student.width == width
    assert seen.tokens.shape == (2, grid[0] * grid[1], width) and seen.summary.shape == (2, width) and seen.mask is None
    (seen.tokens.square().mean() + seen.summary.square().mean()).backward()
    assert all(p.grad is not None for p in student.parameters())  # nothing unused, which DistributedDataParallel minds


def test_conv_students_have_no_batch_norm_and_known_counts():
    lines = {}
    for name in ("resnet50", "mobilenetv3-large"):
        student = image_student(name, 64).train()
        assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in student.modules())
        images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():  # an image's features do not depend on its batch
            torch.testing.assert_close(student(images).tokens[:1], student(images[:1]).tokens, atol=1e-4, rtol=1e-3)
        lines[name] = describe(name, student)
    assert lines["resnet50"] == "resnet50: 23.51M parameters, 25.56M with a classifier of 1000 classes"
    assert lines["mobilenetv3-large"].startswith("mobilenetv3-large: 2.97M parameters, 5.48M with")
    assert [stride_for(size) for size in (224, 128, 112, 96, 64, 48)] == [32, 16, 16, 8, 8, 8]


def test_small_conv_students_match_the_small_vit():
    wanted = count(image_student("vit-micro", 48))
    images = torch.randn(3, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    for name in ("resnet-micro", "mobilenet-micro"):
        student = image_student(name, 48).train()
        assert abs(count(student) / wanted - 1) < 0.1
        assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in student.modules())
        with torch.no_grad():
            seen = student(images)
            torch.testing.assert_close(seen.tokens[:1], student(images[:1]).tokens, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(seen.summary, seen.tokens.mean(1))
        assert seen.tokens.std(1).mean() > 0.1  # cells differ


def test_initial_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for build in (
        lambda seed: image_student("vit-micro", 48, seed),
        lambda seed: image_student("mobilenet-micro", 48, seed),
        lambda seed: text_student("vit-micro", 77, 96, seed),
    ):
        first, again, other = (build(seed).state_dict() for seed in (5, 5, 6))
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert any(not torch.equal(first[name], other[name]) for name in first)
    assert torch.equal(before, torch.get_rng_state())


def test_the_text_student_looks_both_ways_but_not_at_padding():
    student = text_student("vit-micro", 77, 32).eval()
    table = torch.randn(49408, 32, generator=torch.Generator().manual_seed(0))
    short, long = ids([5, 0, 7], length=5), ids([5, 0, 7], length=12)
    long[:, 5:] = torch.tensor([3, 1, 4, 1, 5, 9, 2])  # after the end anything may stand
    with torch.no_grad():
        first, padded = student(short, table), student(long, table)
        changed = student(ids([5, 0, 8], length=5), table)
    torch.testing.assert_close(padded.summary, first.summary, atol=1e-5, rtol=0)
    torch.testing.assert_close(padded.tokens[:, :5], first.tokens, atol=1e-5, rtol=0)
    assert first.mask.tolist() == [[True, True, True, True, False]]  # token 0 is "!", not padding
    assert padded.mask.sum() == 4 and torch.equal(first.summary, first.tokens[:, 4])
    assert not torch.allclose(changed.tokens[:, 1], first.tokens[:, 1], atol=1e-6)  # an earlier word sees a later one
    empty = student(ids([]), table)
    assert empty.tokens.isfinite().all() and empty.mask.sum() == 1


def test_distillation_sends_no_gradient_into_the_trunk():
    trunk = Trunk(trunk_config("drc-tiny"))
    table = token_table(trunk.towers)
    student = text_student("vit-micro", trunk.text_spec.context_length, table.shape[1])
    seen = student(ids([5, 6], [7]), table)
    (seen.tokens.square().sum() + seen.summary.sum()).backward()
    assert table.requires_grad and table.grad is None
    assert all(p.grad is not None for p in student.parameters())
    assert not any("table" in name and tensor.numel() > 1000 for name, tensor in student.state_dict().items())


def test_unknown_students():
    with pytest.raises(UserError, match=r"no image student.*vit-tiny.*resnet50"):
        image_student("resnet18", 224)
    with pytest.raises(UserError, match="no text student"):
        text_student("resnet50", 77, 512)
    with pytest.raises(UserError, match="whole patches"):
        image_student("vit-tiny", 50)
    with pytest.raises(UserError, match="no token table"):
        token_table(nn.Linear(1, 1))
