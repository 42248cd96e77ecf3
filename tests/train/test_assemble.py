"""Fine-tuning a model that has students and fusion: what it keeps, and what a teacher does beside them."""

from contextlib import closing

import pytest
import torch

from dinorankclip.commands.teacher import cache as cache_command
from dinorankclip.config import as_dict
from dinorankclip.evaluate.during_training import take_fidelity
from dinorankclip.evaluate.fidelity import run_fidelity
from dinorankclip.models.folder import load_folder, save_model
from dinorankclip.models.joint import FusionDesign, Students
from dinorankclip.models.loaded import load_model
from dinorankclip.train.assemble import assemble, build_model
from dinorankclip.train.run_folder import claim
from dinorankclip.train.step import backward
from dinorankclip.types import Progress
from tests.train.running import settings_from, small_pairs

FINETUNE = ["--preset", "finetune", "--budget.batch", "16", "--budget.threads", "1", "--budget.device", "cpu"]
MICRO = Students("vit-micro", "vit-micro")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs", train=48, val=8)


def start_of(folder, *flags):
    """A model folder with vit-micro students in both branches and weights that no seed would draw."""
    model = build_model(settings_from("--preset", "scenes", *flags))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    folder.mkdir()
    save_model(model, folder)
    return folder


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    flags = ["--method", "dinorankclip", "--distil.cache", "none", "--fusion.variant", "spp"]
    return start_of(tmp_path_factory.mktemp("start") / "fused", *flags)


def kept(model, start, *parts):
    """Whether these parts have the weights that they started with."""
    before, now = load_folder(start).state_dict(), model.state_dict()
    names = [name for name in now if name.split(".")[0] in parts]
    assert {name.split(".")[0] for name in names} == set(parts)
    return all(name in before and torch.equal(before[name], now[name]) for name in names)


@pytest.mark.parametrize("captions_too", [False, True])
def test_a_teacher_of_images_leaves_the_text_student_alone(pairs, fused, tmp_path, captions_too):
    cache_command(tmp_path / "cache", str(pairs), "random-vit", 64, "random-text" if captions_too else None)
    flags = ["--data", pairs, "--init", fused, "--distil.cache", tmp_path / "cache"]
    parts = assemble(settings_from(*FINETUNE, *flags))
    assert set(parts.state.model.learners) == {"image", "text"}
    with closing(iter(parts.loader)) as batches:
        batch = next(batches)
    terms = backward(parts.state.model, parts.state.objective, batch, Progress(0, 3, 1), parts.placement)
    assert set(terms.terms) == {"contrastive", "gram_image", "relational_image"} and terms.total.isfinite()
    scores = take_fidelity(parts)
    assert -1 <= scores["image cosine"] <= 1 and not any(name.startswith("text") for name in scores)
    claim(tmp_path / "run", as_dict(parts.settings), False)
    found = run_fidelity(tmp_path / "run", load_model(fused, device="cpu"))
    assert "image cosine" in found.scores and not any(name.startswith("text") for name in found.scores)


@pytest.mark.parametrize("method", ["clip", "dinorankclip"])
def test_defaults_of_preset_and_method_replace_nothing_that_was_trained(fused, capsys, method):
    model = build_model(settings_from(*FINETUNE, "--method", method, "--init", fused))
    assert (model.students, model.fusion) == (MICRO, FusionDesign("spp"))
    assert kept(model, fused, "trunk", "image_student", "text_student", "image_fusion", "text_fusion")
    reported = capsys.readouterr().out
    if method == "dinorankclip":
        assert f"{fused} keeps its image student (vit-micro); the default vit-tiny" in reported
        assert f"{fused} keeps its fusion (spp); the default full" in reported


def test_a_student_that_is_asked_for_begins_anew_and_that_is_said(fused, capsys):
    flags = ["--method", "dinorankclip", "--init", fused, "--distil.image-student", "vit-mini"]
    model = build_model(settings_from(*FINETUNE, *flags))
    assert (model.students, model.fusion) == (Students("vit-mini", "vit-micro"), FusionDesign("spp"))
    assert kept(model, fused, "text_student", "text_fusion") and not kept(model, fused, "image_student")
    assert "(vit-micro) gives way to a fresh one (vit-mini), as asked" in capsys.readouterr().out


def test_a_fusion_that_is_asked_for_begins_anew_behind_the_same_students(fused, capsys):
    flags = ["--method", "dinorankclip", "--init", fused, "--fusion.variant", "additive"]
    model = build_model(settings_from(*FINETUNE, *flags))
    assert (model.students, model.fusion) == (MICRO, FusionDesign("additive"))
    assert kept(model, fused, "image_student", "text_student") and not kept(model, fused, "image_fusion")
    assert "(spp) gives way to a fresh one (additive), as asked" in capsys.readouterr().out


def test_a_teacher_of_images_does_not_take_the_text_fusion_away(fused):
    model = build_model(settings_from(*FINETUNE, "--method", "rank", "--init", fused, "--fusion.variant", "spp"))
    assert kept(model, fused, "image_student", "text_student", "image_fusion", "text_fusion")


def test_students_that_were_never_fused_are_kept_where_they_are_taught(tmp_path):
    taught = ["--distil.cache", "auto", "--distil.branches", "image+text"]
    start = start_of(tmp_path / "start", *taught)
    model = build_model(settings_from(*FINETUNE, "--method", "dinorankclip", "--init", start))
    assert (model.students, model.fusion) == (MICRO, FusionDesign("full"))
    assert kept(model, start, "image_student", "text_student")
    assert build_model(settings_from(*FINETUNE, "--init", start)).students == Students()
