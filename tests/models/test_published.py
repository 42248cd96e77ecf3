import pytest

from dinorankclip.commands.train import parse
from dinorankclip.models.open_clip_weights import caution_about_weights, refuse_foreign_captions
from dinorankclip.models.trunk import trunk_config
from dinorankclip.train.assemble import build_model
from dinorankclip.types import UserError


@pytest.mark.parametrize("name", ["ViT-B-32-quickgelu", "RN50-quickgelu", "ViT-B-16-plus-240", "drc-tiny"])
def test_files_of_models_whose_published_weights_are_all_used_as_they_were_made(name):
    assert caution_about_weights(name) == ""
    refuse_foreign_captions(trunk_config(name), name)


def test_a_file_that_may_have_been_shown_images_another_way_gets_a_caution():
    told = caution_about_weights("ViT-L-14")  # LAION's has mean and std of 0.5, OpenAI's has CLIP's
    views = told.partition("computes with")[0]
    assert "laion2b_s32b_b82k" in views and "openai" not in views


def test_a_file_that_may_have_been_trained_with_quick_gelu_gets_a_caution():
    told = caution_about_weights("ViT-B-32")  # OpenAI's have QuickGELU, LAION's larger ones GELU
    assert "openai" in told and "laion2b_s34b_b79k" not in told and "take ViT-B-32-quickgelu as the name" in told


@pytest.mark.parametrize(("name", "why"), [("MobileCLIP-S1", "interpolation bilinear"), ("ViT-H-14-378", "squash")])
def test_a_file_that_cannot_have_been_shown_images_our_way_is_refused(name, why):
    with pytest.raises(UserError, match=why):
        caution_about_weights(name)


def test_training_refuses_trunks_that_read_captions_in_another_way():
    settings, *_ = parse(["--preset", "finetune", "--model.trunk", "ViT-B-16-SigLIP", "--data", "photos.csv"])
    with pytest.raises(UserError, match="tokenizer of its own"):
        build_model(settings)
