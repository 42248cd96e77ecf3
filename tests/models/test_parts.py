"""Channel attention, spatial attention and refiner against plain loops; what each of them may and may not see."""

import math

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.models.fusion_variants import (
    ChannelAttention,
    MeanSummary,
    Refiner,
    Scales,
    SpatialAttention,
    dense,
    heads_for,
    pyramid,
)
from tests.models.features import draw, image_features, text_features

LENGTHS = [1, 2, 5, 9]


def scales_of(kind):
    features = text_features(LENGTHS, 9, 16) if kind == "text" else image_features(4, 9, 16)
    return pyramid(features.tokens, features.mask), features


def valid_tokens(scales, item):
    """The tokens of an item that count, scale by scale."""
    tokens = scales.tokens[item].split(scales.sizes)
    if scales.valid is None:
        return list(tokens)
    return [scale[keep] for scale, keep in zip(tokens, scales.valid[item].split(scales.sizes))]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("kind", ["image", "text"])
def test_scales(kind):
    scales, features = scales_of(kind)
    assert scales.tokens.shape == (4, 9 + 14, 16) and scales.sizes == (9, 2, 4, 8)
    for item, length in enumerate(LENGTHS if kind == "text" else [9] * 4):
        parts = valid_tokens(scales, item)
        assert [len(part) for part in parts] == [length, 2, 4, 8]
        assert torch.equal(parts[0], features.tokens[item, :length])
        assert scales.tokens[item, length:9].eq(0).all()
        together = torch.cat(parts)
        torch.testing.assert_close(scales.mean()[item], together.mean(0))
        assert torch.equal(scales.largest()[item], together.amax(0))


@pytest.mark.parametrize("kind", ["image", "text"])
def test_channel_attention_equals_the_loops(kind):
    scales, _ = scales_of(kind)
    torch.manual_seed(0)
    attention = ChannelAttention(16)
    assert attention.fc1.out_features == 8 and ChannelAttention(192).fc1.out_features == 24

    def mlp(row):
        hidden = [max(0.0, float(w @ row + b)) for w, b in zip(attention.fc1.weight, attention.fc1.bias)]
        return [float(w @ torch.tensor(hidden) + b) for w, b in zip(attention.fc2.weight, attention.fc2.bias)]

    with torch.no_grad():
        weighed = attention(scales)
        for item in range(4):
            tokens = torch.cat(valid_tokens(scales, item))
            mean = mlp(torch.stack([column.sum() / len(tokens) for column in tokens.T]))
            largest = mlp(torch.stack([max(column) for column in tokens.T]))
            weights = torch.tensor([sigmoid(a + b) for a, b in zip(mean, largest)])
            torch.testing.assert_close(weighed.tokens[item], scales.tokens[item] * weights)


@pytest.mark.parametrize("kind", ["image", "text"])
def test_spatial_attention_equals_the_loops(kind):
    scales, _ = scales_of(kind)
    torch.manual_seed(0)
    attention = SpatialAttention()
    kernel = attention.conv.weight[0].tolist()  # [mean or maximum][tap]
    with torch.no_grad():
        weighed = attention(scales)
        for item in range(4):
            for scale, result in zip(valid_tokens(scales, item), valid_tokens(weighed, item)):
                seen = [(float(token.mean()), float(token.max())) for token in scale]
                for place, token in enumerate(scale):
                    score = float(attention.conv.bias)
                    for tap in range(7):
                        neighbour = place + tap - 3
                        if 0 <= neighbour < len(scale):
                            score += sum(kernel[c][tap] * seen[neighbour][c] for c in range(2))
                    torch.testing.assert_close(result[place], token * sigmoid(score))


@pytest.mark.parametrize("kind", ["image", "text"])
def test_the_refiner_is_the_class_position_of_a_whole_layer(kind):
    scales, features = scales_of(kind)
    torch.manual_seed(0)
    refiner = Refiner(16)
    refiner.heads = 2
    tokens = torch.cat([features.summary[:, None], scales.tokens], 1)
    query, key, value = (
        layer(tokens).unflatten(-1, (2, -1)).transpose(1, 2) for layer in (refiner.query, refiner.key, refiner.value)
    )
    visible = None if scales.valid is None else F.pad(scales.valid, (1, 0), value=True)[:, None, None]
    mixed = F.scaled_dot_product_attention(query, key, value, visible).transpose(1, 2).flatten(2)
    x = features.summary[:, None] + refiner.proj(mixed)
    x = x + refiner.fc2(F.gelu(refiner.fc1(refiner.norm(x))))
    torch.testing.assert_close(refiner(features.summary, scales), x[:, 0], atol=1e-5, rtol=1e-5)
    assert [heads_for(width) for width in (16, 64, 96, 100, 192, 960)] == [1, 2, 3, 2, 6, 30]


def test_the_mean_summary_by_hand():
    tokens = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]]])
    mask = torch.tensor([[True, True, False]])
    assert MeanSummary()(torch.tensor([[10.0, 20.0]]), dense(tokens, mask)).tolist() == [[12.0, 24.0]]


@pytest.mark.parametrize("kind", [lambda: Refiner(16), MeanSummary], ids=["refiner", "mean"])
def test_a_summary_heeds_the_weights_of_tokens(kind):
    # A norm after spatial attention would divide each token's weight out again.
    torch.manual_seed(0)
    summary = kind()
    scales, features = scales_of("image")
    weights = draw(4, 23, 1, seed=5).sigmoid()
    weighed = Scales(scales.tokens * weights, scales.valid, scales.sizes)
    with torch.no_grad():
        change = summary(features.summary, weighed) - summary(features.summary, scales)
    assert change.norm(dim=-1).min() > 0.05
