"""open_clip's blocks walked by us: the same values and gradients as open_clip's own forward."""

import pytest
import torch

from dinorankclip.data.tokens import Tokenizer
from dinorankclip.models.trunk import LENGTH_STEP, Trunk, caption_runs, trunk_config

LONG = "a man in a red coat walks a very large dog along a road beside the sea"
CAPTIONS = ["a dog", "two cats", "", LONG, "word " * 90]


def values_and_gradients(trunk, encode, items):
    trunk.zero_grad(set_to_none=True)
    rows = encode(items)
    (rows * torch.linspace(-1, 1, rows.numel(), dtype=rows.dtype).view_as(rows)).sum().backward()
    return rows.detach(), {name: p.grad.clone() for name, p in trunk.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("captions", [CAPTIONS, CAPTIONS[:3]])
def test_both_towers_equal_open_clips(captions):
    trunk = Trunk(trunk_config("drc-small")).double()
    tokenizer = Tokenizer(trunk.text_spec)
    images = torch.randn(3, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for ours, theirs in (
        (values_and_gradients(trunk, trunk.encode_image, images), (trunk.towers.encode_image, images)),
        (
            values_and_gradients(trunk, trunk.encode_text, tokenizer(captions)),
            (trunk.towers.encode_text, tokenizer(captions, full=True)),
        ),
    ):
        rows, gradients = values_and_gradients(trunk, *theirs)
        torch.testing.assert_close(ours[0], rows, atol=1e-12, rtol=0)
        assert ours[1].keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(ours[1][name], gradient, atol=1e-11, rtol=1e-9)


def test_captions_of_like_length_form_a_run():
    order, runs = caption_runs(torch.tensor([3, 9, 4, 12, 5]), longest=10)
    assert LENGTH_STEP == 4
    assert order.tolist() == [0, 2, 4, 1, 3]
    assert runs.shapes == ((2, 4), (1, 8), (2, 10))  # 9 and 12 would be padded to 12, but the batch ends at 10


def test_no_captions_give_no_rows():
    trunk = Trunk(trunk_config("drc-tiny"))
    assert trunk.encode_text(torch.zeros(0, 5, dtype=torch.int64)).shape == (0, 128)


def test_other_towers_keep_open_clips_own_forward():
    config = trunk_config("drc-tiny")
    config["vision_cfg"]["pool_type"] = "avg"
    trunk = Trunk(config)
    images = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(trunk.encode_image(images), trunk.towers.encode_image(images), atol=0, rtol=0)
