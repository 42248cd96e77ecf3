"""Rows of frozen towers hold exactly what the fusion reads, and their ids are those of the tower."""

import pytest
import torch

from dinorankclip.models.towers import ImageTower, RowLayout, TextTower
from dinorankclip.teachers.registry import open_text_teacher


def test_rows_of_captions_by_hand():
    layout = RowLayout(summary=2, places=3, width=2, counted=True)
    summary = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    tokens = torch.arange(16.0).view(2, 4, 2)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    rows = layout.pack(summary, tokens, mask)
    assert rows[0].tolist() == [1, 2, 0, 1, 2, 3, 0, 0, 2]  # two tokens, an empty place, their number
    assert rows[1].tolist() == [3, 4, 8, 9, 10, 11, 12, 13, 3]  # the fourth token has no place
    assert layout.dim == 9
    unpacked, features = layout.unpack(rows)
    assert torch.equal(unpacked, summary) and features.mask.tolist() == [[True, True, False], [True] * 3]
    assert features.summary.tolist() == [[1, 2], [10, 11]]  # means over the tokens that are there


def test_rows_of_images_have_no_mask():
    layout = RowLayout(summary=2, places=2, width=1)
    rows = layout.pack(torch.ones(1, 2), torch.tensor([[[3.0], [5.0]]]), torch.ones(1, 2, dtype=torch.bool))
    assert rows.tolist() == [[1, 1, 3, 5]]
    _, features = layout.unpack(rows)
    assert features.mask is None and features.summary.tolist() == [[4]]


def test_rows_of_other_towers_are_refused():
    with pytest.raises(ValueError, match=r"rows of 5 numbers, not 4"):
        RowLayout(4).unpack(torch.zeros(1, 5))
    assert RowLayout(4).unpack(torch.zeros(1, 4))[1] is None


def test_text_tower_gives_what_its_teacher_gives():
    tower, teacher = TextTower("random-text:2"), open_text_teacher("random-text:2")
    captions = ["a red mug", "two dogs run on the beach", ""]
    expected = teacher.tokens(captions)
    tokens, summary, mask = tower(tower.tokenizer(captions))
    assert torch.equal(mask, expected.mask)
    torch.testing.assert_close(summary[:, :192], expected.summary)
    assert torch.allclose(summary[2, 192:], expected.tokens[2][expected.mask[2]].mean(0), atol=1e-5)
    torch.testing.assert_close(tokens, expected.tokens)
    whole = tower.tokenizer(captions, full=True)
    assert whole.shape == (3, 77) and torch.equal(tower.tokenizer.mask(whole)[:, : mask.shape[1]], mask)
    assert tower.tokenizer.whole_length("a red mug") == 5 and tower.tokenizer.end_of_text == 49407


def test_image_tower_takes_the_pixels_of_its_teacher():
    tower = ImageTower("random-vit:2", 32)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    spec = tower.image_spec
    mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in (spec.mean, spec.std))
    tokens, summary = tower((images / 255 - mean) / std)
    expected = tower.teacher.dense(images)
    torch.testing.assert_close(tokens, expected.tokens, atol=1e-5, rtol=0)
    torch.testing.assert_close(summary[:, :192], expected.summary, atol=1e-5, rtol=0)
    torch.testing.assert_close(summary[:, 192:], expected.tokens.mean(1), atol=1e-5, rtol=0)
    assert (tower.places, tower.width, tower.summary) == (4, 192, 384)
    assert not any(parameter.requires_grad for parameter in tower.parameters())
