"""The six fusions and their modules: values against plain loops, where they start, that they learn, invariances."""

import math

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.config import OptimSettings
from dinorankclip.models.fusion import Fused, alignment_bound, alignment_ratio, fused_angle
from dinorankclip.models.fusion_variants import (
    VARIANTS,
    ChannelAttention,
    MeanSummary,
    Refiner,
    Scales,
    SpatialAttention,
    build_fusion,
    dense,
    heads_for,
    pyramid,
)
from dinorankclip.models.students import StudentFeatures, image_student, text_student, token_table
from dinorankclip.models.trunk import Trunk, trunk_config
from dinorankclip.train.step import parameter_groups
from dinorankclip.types import UserError
from tests.models.features import ConstantGate, draw, image_features, text_features

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


D, C = 128, 64

TABLE = [
    # variant        reads            parameters at d = 128, C = 64 with gate, and without
    ("concat", "class token", 24_704, 24_704),
    ("additive", "class token", 8_320, 8_320),
    ("single-scale", "mean", 41_344, 8_448),
    ("spp", "refiner", 91_072, 58_176),
    ("spp-cbam", "channel spatial mean", 42_455, 9_559),
    ("full", "channel spatial refiner", 92_183, 59_287),
]
GATED = [row[0] for row in TABLE if row[1] != "class token"]
EVERY = [(variant, gate) for variant in VARIANTS for gate in (True, False)]


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def away_from_the_start(module):
    """Weights such that every part of the module matters, gate included."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return module


@pytest.mark.parametrize(("variant", "reads", "gated", "ungated"), TABLE)
def test_the_table_of_variants(variant, reads, gated, ungated):
    assert tuple(row[0] for row in TABLE) == VARIANTS
    assert count(build_fusion(variant, True, D, C, "image")) == gated
    assert count(build_fusion(variant, False, D, C, "image")) == ungated
    parts = {name.rsplit(".", 1)[-1] for name, _ in build_fusion(variant, True, D, C, "image").named_modules()}
    assert ("channel" in parts) == ("spatial" in parts) == ("channel" in reads)
    assert ("fc1" in parts) == ("channel" in reads or "refiner" in reads)
    assert ("query" in parts) == ("refiner" in reads)
    assert ("gate" in parts) == (variant in GATED)


def test_the_papers_size():
    assert count(build_fusion("full", True, 512, 192, "image")) == 1_077_415
    assert count(build_fusion("full", True, 512, 192, "text")) == 1_077_415


@pytest.mark.parametrize(("variant", "gate"), EVERY)
def test_where_a_fusion_starts(variant, gate):
    v = draw(6, D, seed=9) * 3
    fused = build_fusion(variant, gate, D, C, "image")(v, image_features())
    assert isinstance(fused, Fused)
    assert fused.embedding.shape == fused.residual.shape == fused.gate.shape == (6, D)
    if variant in GATED and gate:
        torch.testing.assert_close(fused.gate, torch.full((6, D), 0.0179862))
        torch.testing.assert_close(fused.residual.norm(dim=-1), v.norm(dim=-1))
        assert fused_angle(fused.embedding, v).max() < 1.031
    else:
        assert fused.gate.eq(1).all() and fused.residual.eq(0).all()
        assert torch.equal(fused.embedding, v)


@pytest.mark.parametrize(("variant", "gate"), EVERY)
def test_a_start_at_zero_is_the_trunk_and_learns_at_once(variant, gate):
    v, goal = draw(6, D, seed=9) * 3, draw(6, D, seed=8)
    module = build_fusion(variant, gate, D, C, "image", start="zero")
    fused = module(v, image_features())
    assert fused.residual.eq(0).all() and torch.equal(fused.embedding, v)
    if variant not in GATED or not gate:
        return
    torch.testing.assert_close(fused.gate, torch.full((6, D), 0.5))
    moved = []
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for _ in range(2):
        loss = 1 - F.cosine_similarity(module(v, image_features()).embedding, goal).mean()
        optimizer.zero_grad()
        loss.backward()
        moved.append((module.residual.projection.weight.grad.abs().max(), module.gate.bias.grad.abs().max()))
        optimizer.step()
    assert moved[0][0] > 1e-3 and moved[0][1] == 0  # u is zero: the projection moves first
    assert moved[1][1] > 1e-5  # and the gate in the step after it
    # The residual is the projection itself, whatever the trunk's length.
    one, far = (module(v * factor, image_features()).residual for factor in (1.0, 10.0))
    assert torch.equal(one, far)


def test_a_gate_starts_at_the_bias_that_is_asked_for():
    for start, bias, alpha in (("closed", None, 0.0179862), ("closed", -2.0, 0.1192029), ("zero", -1.0, 0.2689414)):
        module = build_fusion("full", True, D, C, "image", start=start, gate_bias=bias)
        torch.testing.assert_close(module(draw(6, D), image_features()).gate, torch.full((6, D), alpha))
    with pytest.raises(UserError, match="no start of a fusion is called 'open'; there are closed, zero"):
        build_fusion("full", True, D, C, "image", start="open")


@pytest.mark.parametrize(("variant", "gate"), EVERY)
def test_a_gate_forced_to_zero_gives_the_trunk_back(variant, gate):
    module, v = away_from_the_start(build_fusion(variant, gate, D, C, "image")), draw(6, D, seed=9)
    free = module(v, image_features())
    assert not torch.allclose(free.embedding, v, atol=1e-2)
    own, module.gate = module.gate, ConstantGate(0.0)
    assert torch.equal(module(v, image_features()).embedding, v)
    module.gate = ConstantGate(0.5)
    half = module(v, image_features())
    assert half.gate.eq(0.5).all()
    torch.testing.assert_close(half.embedding, v + free.residual / 2)
    module.gate = own
    assert torch.equal(module(v, image_features()).embedding, free.embedding)


def test_the_simple_variants_written_out():
    v, features = draw(6, D, seed=9), image_features()
    modules = {name: away_from_the_start(build_fusion(name, False, D, C, "image")) for name in VARIANTS[:3]}
    concat, additive, single = (modules[name].residual for name in VARIANTS[:3])
    mean = single.reader.norm(features.summary) + single.reader.norm(features.tokens).mean(1)
    expected = {
        "concat": torch.cat([v, concat.norm(features.summary)], -1) @ concat.mix.weight.T,
        "additive": v + additive.norm(features.summary) @ additive.projection.weight.T,
        "single-scale": v + v.norm(dim=-1, keepdim=True) * (single.norm(mean) @ single.projection.weight.T),
    }
    for name, module in modules.items():
        torch.testing.assert_close(module(v, features).embedding, expected[name], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("variant", GATED)
def test_the_gate_sees_both_streams_and_keeps_the_bound(variant):
    module = away_from_the_start(build_fusion(variant, True, D, C, "image"))
    with torch.no_grad():
        module.gate.bias.fill_(-1.0)
    v, features = draw(6, D, seed=9), image_features()
    first, other_v, other_u = module(v, features), module(-v, features), module(v, image_features(seed=4))
    for other in (other_v, other_u):
        assert (other.gate - first.gate).abs().max() > 0.01
    assert first.gate.min() > 0 and first.gate.max() < 1
    ratio = alignment_ratio(first.gate, first.residual, v)
    assert (fused_angle(first.embedding, v) <= alignment_bound(ratio)).all()


@pytest.mark.parametrize(("variant", "gate"), EVERY)
def test_every_parameter_learns(variant, gate):
    module, features, v = build_fusion(variant, gate, D, C, "text"), text_features([1, 3, 7, 12], 12), draw(4, D)
    goal = draw(4, D, seed=8)
    optimizer = torch.optim.AdamW(parameter_groups(dict(module.named_parameters()), OptimSettings()), lr=1e-2)
    losses, asleep = [], []
    for _ in range(3):
        loss = 1 - F.cosine_similarity(module(v, features).embedding, goal).mean()
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
        asleep.append({name for name, parameter in module.named_parameters() if not parameter.grad.any()})
        losses.append(loss.item())
        optimizer.step()
    assert losses[2] < losses[1] < losses[0]
    # A projection that starts at zero lets the rest sleep for one step; a gated one starts at random.
    assert bool(asleep[0]) == (variant not in GATED or not gate)
    assert not asleep[1] and not asleep[2]


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_and_company_do_not_matter(variant):
    module = away_from_the_start(build_fusion(variant, True, D, C, "text")).eval()
    lengths = list(range(1, 76))
    features, v = text_features(lengths, 77), draw(75, D, seed=9)
    with torch.no_grad():
        together = F.normalize(module(v, features).embedding, dim=-1)
        for item in (0, 1, 2, 6, 7, 8, 30, 74):
            for padded in {lengths[item], lengths[item] + 1, 76}:
                alone = StudentFeatures(
                    features.summary[item : item + 1],
                    features.tokens[item : item + 1, :padded],
                    features.mask[item : item + 1, :padded],
                )
                embedding = F.normalize(module(v[item : item + 1], alone).embedding, dim=-1)
                torch.testing.assert_close(embedding[0], together[item], atol=1e-6, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_full_mask_is_no_mask(variant):
    module, v = away_from_the_start(build_fusion(variant, True, D, C, "image")), draw(6, D, seed=9)
    for tokens in (1, 2, 3, 7, 8, 9, 5 * 7, 14 * 14):  # any grid
        features = image_features(tokens=tokens)
        masked = StudentFeatures(features.summary, features.tokens, torch.ones(6, tokens, dtype=torch.bool))
        plain = module(v, features).embedding
        assert plain.isfinite().all()
        torch.testing.assert_close(module(v, masked).embedding, plain, atol=2e-5, rtol=0)


def test_an_item_without_tokens_is_finite():
    for variant in VARIANTS:
        module = away_from_the_start(build_fusion(variant, True, D, C, "text"))
        embedding = module(draw(2, D), text_features([0, 3], 5)).embedding
        embedding.sum().backward()
        assert embedding.isfinite().all() and all(p.grad.isfinite().all() for p in module.parameters())


def test_named_seeds():
    torch.manual_seed(1)
    before = torch.get_rng_state()

    def weights(variant, branch="image", seed=5):
        return build_fusion(variant, True, D, C, branch, seed).state_dict()

    for variant in VARIANTS:
        first, again = weights(variant), weights(variant)
        assert all(torch.equal(first[name], again[name]) for name in first)
        if variant in GATED:
            for other in (weights(variant, branch="text"), weights(variant, seed=6)):
                assert not torch.equal(first["residual.projection.weight"], other["residual.projection.weight"])
    full = weights("full")  # what two variants share starts alike
    for smaller in ("spp", "spp-cbam", "single-scale"):
        assert all(torch.equal(full[name], value) for name, value in weights(smaller).items())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("variant", VARIANTS)
def test_half_precision_leaves_the_sum_alone(variant, monkeypatch):
    # Some virtual machines announce matrix instructions that they do not have, and oneDNN believes them.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    module, v, features = build_fusion(variant, True, D, C, "text"), draw(4, D, seed=9), text_features([1, 3, 7, 9], 9)
    exact = module(v, features).embedding
    with torch.autocast("cpu", torch.bfloat16):
        fused = module(v, features)
    assert fused.embedding.dtype == torch.float32
    assert fused_angle(fused.embedding, exact).max() < 0.25


def test_every_matrix_has_a_decay_rule_and_the_gate_bias_none():
    module = build_fusion("full", True, D, C, "image")
    named = {f"image_fusion.{n}": p for n, p in module.named_parameters()}
    decayed, plain = parameter_groups(named, OptimSettings(weight_decay=0.2))
    assert len(decayed["names"]) + len(plain["names"]) == len(list(module.parameters()))
    assert "image_fusion.gate.bias" in plain["names"] and "image_fusion.gate.weight" in decayed["names"]
    assert decayed["weight_decay"] == 0.2 and plain["weight_decay"] == 0


def test_on_a_real_trunk_and_its_students():
    trunk = Trunk(trunk_config("drc-tiny"))
    table = token_table(trunk.towers)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(8, 3, 48, 48, generator=generator)
    texts = torch.randint(1, 40_000, (8, 12), generator=generator)
    texts[:, 0] = 49406
    for row, end in enumerate(range(2, 10)):
        texts[row, end], texts[row, end + 1 :] = 49407, 0
    students = image_student("vit-micro", 48), text_student("vit-micro", 77, table.shape[1])
    branches = (
        ("image", trunk.encode_image(images), students[0](images)),
        ("text", trunk.encode_text(texts), students[1](texts, table)),
    )
    for branch, v, features in branches:
        fused = build_fusion("full", True, trunk.dim, features.summary.shape[1], branch)(v, features)
        angle = fused_angle(fused.embedding, v)
        assert 0.5 < angle.mean() < 2.0
        assert (angle <= alignment_bound(alignment_ratio(fused.gate, fused.residual, v)) + 1e-4).all()
        fused.embedding.square().sum().backward(retain_graph=True)
    for module in (*students, trunk.towers.visual):
        assert any(parameter.grad is not None and parameter.grad.any() for parameter in module.parameters())


def test_the_graph_follows_any_batch_and_length():
    # What exporters need: no Python number in the graph that stands for the size of a batch.
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fusion = away_from_the_start(build_fusion("full", True, D, C, "text"))

        def forward(self, v, summary, tokens, mask):
            return self.fusion(v, StudentFeatures(summary, tokens, mask)).embedding

    def inputs(lengths, tokens):
        features = text_features(lengths, tokens)
        return draw(len(lengths), D, seed=9), features.summary, features.tokens, features.mask

    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", min=2, max=77)
    shapes = ({0: batch}, {0: batch}, {0: batch, 1: length}, {0: batch, 1: length})
    module = Plain().eval()
    exported = torch.export.export(module, inputs([1, 4, 9], 9), dynamic_shapes=shapes).module()
    for case in (inputs([2, 5, 3, 11, 1], 12), inputs([3, 2], 5)):
        torch.testing.assert_close(exported(*case), module(*case), atol=1e-5, rtol=0)


def test_unknown_variants():
    with pytest.raises(UserError, match=r"no fusion is called 'cbam'.*spp-cbam, full"):
        build_fusion("cbam", True, D, C, "image")
