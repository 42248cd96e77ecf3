"""Low-rank corrections: the same values and gradients as merged matrices, in checkpoints, chunks and processes."""

import pytest
import torch

from dinorankclip.models.joint import JointModel
from dinorankclip.models.lora import correct, corrections, merged_state
from tests.train.running import small_pairs
from tests.train.test_frozen import SMALL, model_folder
from tests.train.test_processes import largest_differences, recorded

TARGETS = ("*.resblocks.*weight",)


def corrected(seed=0, rank=4, targets=TARGETS):
    model = JointModel(SMALL, 3)
    counts = correct(model, rank, None, targets, seed)
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("lora_up"):
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=draw))
    return model, counts


def inputs():
    draw = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (5, 3, 32, 32), generator=draw, dtype=torch.uint8)
    texts = torch.tensor([[49406, 5, 6, 49407, 0], [49406, 9, 49407, 0, 0], *[[49406, 7, 8, 9, 49407]] * 3])
    return images, texts


def test_nothing_changes_at_the_start():
    plain, model = JointModel(SMALL, 3), JointModel(SMALL, 3)
    correct(model, 2, None, TARGETS, 0)
    for a, b in zip(plain(*inputs()).named.values(), model(*inputs()).named.values()):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_merged_weights_are_an_ordinary_model_to_1e_5():
    model, _ = corrected()
    plain = JointModel(SMALL)
    plain.load_state_dict(model.own_state())
    start = JointModel(SMALL, 3)(*inputs()).named
    for name, a in plain(*inputs()).named.items():
        b = model(*inputs()).named[name]
        assert (a - b).abs().max() < 1e-5 and (a - start[name]).abs().max() > 1e-3


def test_the_short_way_has_the_gradients_of_the_merged_matrix():
    """Fast blocks take `low_rank_linear`; open_clip's own blocks ask the parametrization, which autograd follows."""
    model, _ = corrected()
    images, texts = inputs()

    def gradients(forward):
        model.zero_grad()
        sum((rows * torch.linspace(0, 1, rows.shape[1])).sum() for rows in forward()).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}

    short = gradients(lambda: model(images, texts).named.values())
    towers = model.trunk.towers
    for module in towers.modules():
        module.__dict__.pop("forward", None)  # of corrected linear layers

    def by_autograd():
        visual = towers.visual
        yield visual(model.normalised(images))
        tokens = towers.token_embedding(texts) + towers.positional_embedding[: texts.shape[1]]
        tokens = towers.transformer(tokens, attn_mask=towers.attn_mask[: texts.shape[1], : texts.shape[1]])
        ends = texts.argmax(-1)
        yield towers.ln_final(tokens)[torch.arange(len(texts)), ends] @ towers.text_projection

    long = gradients(by_autograd)
    assert short.keys() == long.keys() and len(short) == 2 * len(correct(JointModel(SMALL, 3), 4, None, TARGETS, 0))
    for name, grad in short.items():
        torch.testing.assert_close(grad, long[name], rtol=1e-3, atol=1e-5)


def test_corrections_alone_learn_and_are_counted():
    model, counts = corrected(rank=2)
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert learning == sum(counts.values()) == sum(t.numel() for t in corrections(model).values())
    # in_proj [96, 32], out_proj [32, 32], c_fc [128, 32], c_proj [32, 128]; 2 blocks in each of 2 towers
    assert learning == 2 * 4 * ((96 + 32) + (32 + 32) + (128 + 32) + (32 + 128))
    assert merged_state(model).keys() == JointModel(SMALL).state_dict().keys()


def test_the_targets_are_chosen_by_pattern():
    _, counts = corrected(targets=("*visual*in_proj_weight",))
    assert len(counts) == 2 and all("visual" in name for name in counts)
    with pytest.raises(Exception, match="matches no matrix"):
        corrected(targets=("*nothing*",))


def test_two_processes_and_chunks_give_the_gradients_of_one(tmp_path):
    pairs, start = small_pairs(tmp_path / "pairs"), tmp_path / "start"
    start.mkdir()
    model_folder(start, seed=3)
    lora = {"init": str(start), "tune__lora_rank": 4, "optim__name": "adamw", "model__trunk": "drc-tiny"}
    one = recorded(pairs, tmp_path / "one", 1, **lora)
    assert all(".lora_" in name for name in one if name.startswith("3/model.")) and len(one) > 10 * 30
    for name, processes, changes in (("two", 2, {}), ("chunked", 1, {"budget__chunk": 6})):
        losses, gradients = largest_differences(one, recorded(pairs, tmp_path / name, processes, **lora | changes))
        assert losses < 1e-5 and gradients < 1e-4
