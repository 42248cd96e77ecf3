"""The trunk's penultimate tokens, and fusion that reads them: values, folders, exports, refusals."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dinorankclip.data.tokens import Tokenizer
from dinorankclip.models.export_model import write_export
from dinorankclip.models.folder import load_folder
from dinorankclip.models.fusion_variants import VARIANTS
from dinorankclip.models.joint import FusionDesign, JointModel, Students
from dinorankclip.models.loaded import load_model
from dinorankclip.models.own_tokens import PENULTIMATE, OwnImageTokens, OwnTextTokens
from dinorankclip.models.trunk import Trunk, trunk_config
from dinorankclip.search.numpy_text import NotPlain, QuickText
from dinorankclip.types import UserError
from tests.models.model_making import CAPTIONS, photo, saved, small_config

OWN = FusionDesign("full", start="zero", source="trunk")
UNEVEN_CAPTIONS = ["a dog", "two cats on a very small mat", "word " * 90]


def pixels(count=3, side=48):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def entering_last_block(transformer, run):
    seen = []
    hook = transformer.resblocks[-1].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    run()
    hook.remove()
    return seen[0]


def test_image_tokens_are_those_that_enter_open_clips_last_block():
    trunk = Trunk(trunk_config("drc-tiny")).double()
    images = pixels().double()
    embedding, seen = OwnImageTokens(trunk, PENULTIMATE)(images)
    assert torch.equal(embedding, trunk.encode_image(images))  # the same pass, bit for bit
    theirs = entering_last_block(trunk.towers.visual.transformer, lambda: trunk.towers.visual(images))
    torch.testing.assert_close(seen.tokens, theirs[:, 1:], atol=1e-12, rtol=0)
    assert torch.equal(seen.summary @ trunk.towers.visual.proj, embedding)


def test_text_tokens_stand_at_their_places_whatever_the_runs():
    trunk = Trunk(trunk_config("drc-tiny")).double()
    ids = Tokenizer(trunk.text_spec)(UNEVEN_CAPTIONS)
    embedding, seen = OwnTextTokens(trunk, PENULTIMATE)(ids)
    assert torch.equal(embedding, trunk.encode_text(ids))
    towers = trunk.towers
    whole = F.pad(ids, (0, towers.context_length - ids.shape[1]))
    theirs = entering_last_block(towers.transformer, lambda: towers.encode_text(whole))[:, : ids.shape[1]]
    assert seen.mask.sum(1).tolist() == ids.argmax(1).tolist()
    torch.testing.assert_close(seen.tokens[seen.mask], theirs[seen.mask], atol=1e-12, rtol=0)


def test_compared_tokens_are_normalised():
    trunk = Trunk(trunk_config("drc-tiny"))
    own = OwnImageTokens(trunk, PENULTIMATE)
    tokens = own.compared(pixels()).tokens
    assert tokens.mean(-1).abs().max() < 1e-5 and (tokens.std(-1, correction=0) - 1).abs().max() < 1e-2
    last = OwnImageTokens(trunk)
    assert torch.equal(last.compared(pixels()).tokens, last(pixels())[1].tokens)


def moved(model: JointModel) -> JointModel:
    """Move every weight of the fusion, so that it has a say."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "_fusion." in name:
                parameter += 0.3 * torch.randn(parameter.shape, generator=draw)
    return model.eval()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_reads_the_trunk_and_starts_at_it(variant):
    model = JointModel(small_config(layers=2), fusion=FusionDesign(variant, start="zero", source="trunk")).eval()
    plain = JointModel(small_config(layers=2)).eval()
    images, ids = pixels(4, 32), model.tokenizer()(CAPTIONS)
    assert model.students == Students() and set(model.fused_tokens) == {"image", "text"}
    assert torch.equal(model.see(images).raw, plain.see(images).raw)
    assert torch.equal(model.read(ids).raw, plain.read(ids).raw)
    moved(model)
    assert not torch.allclose(model.see(images).raw, plain.see(images).raw, atol=1e-3)
    details = model.image_details(images)
    assert details.tokens.shape == (4, 4, 4, 32) and (details.angle > 0).all()
    alone = model.read(model.tokenizer()(CAPTIONS[:1])).raw  # padding has no say
    torch.testing.assert_close(model.read(ids).raw[:1], alone, atol=1e-5, rtol=0)


def test_forward_names_tokens_only_where_a_teacher_needs_them():
    model = JointModel(small_config(), fusion=OWN)
    images, ids = torch.zeros(2, 3, 32, 32, dtype=torch.uint8), model.tokenizer()(CAPTIONS[:2])
    assert set(model(images, ids).named) == {"image", "text"}
    model.teach_trunk("image", tokens="penultimate")
    assert set(model(images, ids).named) == {"image", "text", "image_student_tokens", "image_student_class"}
    with pytest.raises(UserError, match=r"add --distil\.tokens penultimate"):
        model.teach_trunk("image")


def test_a_branch_can_stay_without_fusion(tmp_path):
    model = JointModel(small_config(), fusion=FusionDesign("full", source="trunk", branches="image"))
    assert model.text_fusion is None and set(model.fused_tokens) == {"image"}
    folder = saved(tmp_path / "model", model)
    assert json.loads((folder / "model.json").read_text())["fusion"] == {
        "variant": "full", "gate": True, "source": "trunk", "branches": "image",
    }  # fmt: skip
    assert load_folder(folder).fusion == model.fusion
    quick = QuickText(folder)("a red mug")  # captions are the trunk's
    assert np.abs(quick - load_model(folder).encode_text(["a red mug"])[0].numpy()).max() < 1e-5


def test_a_folder_an_export_and_graphs_embed_alike(tmp_path):
    model = moved(JointModel(small_config(layers=2), fusion=OWN))
    source = saved(tmp_path / "source", model)
    with pytest.raises(NotPlain):
        QuickText(source)
    ours = load_model(source)
    picture = ours.preprocess(photo())[None]
    assert torch.allclose(ours.encode_image(picture, normalize=False), model.image_side(picture).raw, atol=1e-5)
    written = write_export(str(source), tmp_path / "out", ["folder", "onnx", "open-clip"])
    again = load_model(tmp_path / "out")
    assert again.identity == ours.identity
    assert torch.equal(again.encode_text(CAPTIONS), ours.encode_text(CAPTIONS))
    remarks = "\n".join(written.remarks)
    assert remarks.count("differs from PyTorch") == 2 and "the fusion, which is left out, turns image" in remarks
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Fusion: full, start zero, of the trunk's own tokens (image+text)." in card and "Students" not in card


def test_students_and_towers_of_another_kind_are_refused():
    with pytest.raises(UserError, match="reads no students"):
        JointModel(small_config(), 0, Students("vit-micro", None), OWN)
    config = small_config(pool_type="avg")
    with pytest.raises(UserError, match=r"--fusion\.source trunk needs an image tower"):
        JointModel(config, fusion=OWN)
    config = small_config()
    config["text_cfg"]["pool_type"] = "last"
    with pytest.raises(UserError, match=r"--fusion\.branches image"):
        JointModel(config, fusion=OWN)
