"""Captions read in NumPy: the same embeddings as the model's, or not read in NumPy at all."""

import json

import numpy as np
import pytest
import torch

from dinorankclip.models.joint import FusionDesign, JointModel, Students
from dinorankclip.models.loaded import load_model
from dinorankclip.models.students import SHAPES
from dinorankclip.search.numpy_text import STUDENT_HEADS, NotPlain, QuickText, agrees
from tests.models.model_making import saved, small_config, small_model

CAPTIONS = ["", "dog", "a red mug", "two dogs run over a green field near the sea", "Straßencafé №5 😀", "word " * 100]


def stirred(model):
    """As after training: no weight is left at its start of zero or one, and the gate stands half open."""
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=draws)
            if name == "text_fusion.gate.bias":
                parameter += 4
    return model


def gelus():
    config = small_config()
    config["text_cfg"]["layers"] = 3
    return [JointModel(config), JointModel(config | {"quick_gelu": True})]


@pytest.mark.parametrize(
    "build",
    [
        lambda: gelus()[0],
        lambda: gelus()[1],
        lambda: small_model("full"),
        lambda: JointModel(small_config(), 0, Students(None, "vit-micro"), FusionDesign("full", start="zero")),
        lambda: JointModel(small_config(), 0, Students("vit-micro", None), FusionDesign("full")),
        lambda: JointModel(small_config(), 0, Students(None, "vit-mini")),
    ],
    ids=["plain", "quick_gelu", "fused", "fused from zero", "only images fused", "student without fusion"],
)
def test_it_gives_the_models_embeddings(tmp_path, build):
    folder = saved(tmp_path / "model", stirred(build()))
    model, quick = load_model(folder), QuickText(folder)
    for caption in CAPTIONS:
        np.testing.assert_allclose(quick(caption), model.encode_text([caption])[0].numpy(), atol=2e-6)
    assert agrees(folder, model)


def test_the_fused_case_is_a_case(tmp_path):
    """Fusion moves the embeddings by far more than the tolerance above."""
    model = stirred(small_model("full")).eval()
    side = model.read(load_model(saved(tmp_path / "model", model)).tokenizer(CAPTIONS))
    cosine = torch.nn.functional.cosine_similarity(side.raw, side.contrastive)
    assert (cosine < 0.98).all()


def test_all_text_students_are_known():
    assert {name: shape.heads for name, shape in SHAPES.items()} == STUDENT_HEADS


@pytest.mark.parametrize("variant", ["concat", "additive", "single-scale", "spp", "spp-cbam"])
def test_other_fusions_are_left_to_torch(tmp_path, variant):
    folder = saved(tmp_path / "model", small_model(variant))
    with pytest.raises(NotPlain):
        QuickText(folder)
    assert not agrees(folder, load_model(folder))


def test_a_tower_that_is_no_plain_one_is_left_to_torch(tmp_path):
    config = small_config()
    config["text_cfg"]["no_causal_mask"] = True
    folder = saved(tmp_path / "model", JointModel(config))
    assert not agrees(folder, load_model(folder))


def test_it_is_not_believed_where_it_differs(tmp_path):
    """The same weights under another activation: everything fits, the numbers do not."""
    folder = saved(tmp_path / "model", stirred(gelus()[0]))
    model = load_model(folder)
    design = json.loads((folder / "model.json").read_text())
    design["trunk"]["quick_gelu"] = True
    (folder / "model.json").write_text(json.dumps(design))
    assert not agrees(folder, model)
