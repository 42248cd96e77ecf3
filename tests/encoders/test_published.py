import pytest

from dinorankclip.commands.train import parse
from dinorankclip.encoders.published import refuse_foreign_captions, views_of_weights
from dinorankclip.encoders.trunk import trunk_config
from dinorankclip.pretrain.assemble import build_model
from dinorankclip.types import UserError


@pytest.mark.parametrize("name", ["ViT-B-32", "RN50", "drc-tiny"])
def test_files_of_models_that_were_all_shown_images_our_way(name):
    assert views_of_weights(name) == ""
    refuse_foreign_captions(trunk_config(name), name)


def test_a_file_that_may_have_been_shown_images_another_way_gets_a_caution():
    told = views_of_weights("ViT-L-14")  # LAION's has mean and std of 0.5, OpenAI's has CLIP's
    assert "laion2b_s32b_b82k" in told and "openai" not in told


@pytest.mark.parametrize(("name", "why"), [("MobileCLIP-S1", "interpolation bilinear"), ("ViT-H-14-378", "squash")])
def test_a_file_that_cannot_have_been_shown_images_our_way_is_refused(name, why):
    with pytest.raises(UserError, match=why):
        views_of_weights(name)


def test_training_refuses_trunks_that_read_captions_in_another_way():
    settings, *_ = parse(["--preset", "finetune", "--model.trunk", "ViT-B-16-SigLIP", "--data", "photos.csv"])
    with pytest.raises(UserError, match="tokenizer of its own"):
        build_model(settings)
