"""The registry describes each teacher as it is when opened, and messages and help list all of them."""

import subprocess
import sys

import pytest
import torch

from dinorankclip.commands.teacher import main
from dinorankclip.teachers import weights_files
from dinorankclip.teachers.registry import TEACHER_KINDS, kinds_of, open_teacher, open_text_teacher, shape_of
from dinorankclip.types import UserError
from tests.teachers import layouts


@pytest.mark.parametrize(("modality", "open_it"), [("image", open_teacher), ("text", open_text_teacher)])
def test_the_message_about_an_unknown_teacher_lists_all_kinds(modality, open_it):
    for ask in (open_it, lambda spec: shape_of(spec, modality)):
        with pytest.raises(UserError, match=f"'nobody' is no {modality} teacher; there are") as error:
            ask("nobody")
        assert [kind for kind in TEACHER_KINDS.values() if kind.usage in str(error.value)] == kinds_of(modality)


def test_a_teacher_of_the_other_modality_is_told_apart():
    with pytest.raises(UserError, match=r"'hf:x' is no text teacher \(hf is a kind of image teacher\); there are"):
        open_text_teacher("hf:x")


def test_messages_about_missing_weights_name_teachers_of_the_right_modality():
    for modality, message in (("image", weights_files.INSTEAD), ("text", weights_files.INSTEAD_TEXT)):
        ways_out = [kind for kind in TEACHER_KINDS.values() if kind.fallback]
        named = [kind for kind in ways_out if f" {kind.name}{kind.fallback}" in message]
        assert named == [kind for kind in ways_out if kind.modality == modality]


def test_help_lists_every_teacher(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # no usage is broken over two lines
    main(["--help"])
    printed = capsys.readouterr().out
    assert all(kind.usage in printed and kind.about in printed for kind in TEACHER_KINDS.values())
    with pytest.raises(SystemExit):
        main(["cache", "--help"])
    printed = capsys.readouterr().out
    assert all(kind.usage in printed for kind in TEACHER_KINDS.values())


def test_help_answers_without_heavy_libraries():
    code = "import sys, dinorankclip.commands.teacher; "
    code += "sys.exit(bool({'torch', 'numpy', 'timm', 'transformers'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def assert_shape_of_teacher(spec, teacher, size):
    shape = shape_of(spec, "image")
    features = teacher.dense(torch.zeros(1, 3, size, size, dtype=torch.uint8))
    assert teacher.grid == (size // shape.patch, size // shape.patch)
    assert (features.tokens.shape[-1], features.summary.shape[-1]) == (shape.width, shape.summary)


def test_a_random_teacher_has_the_shape_in_the_registry():
    assert_shape_of_teacher("random-vit:1", open_teacher("random-vit:1", 64), 64)
    text, features = shape_of("random-text", "text"), open_text_teacher("random-text").tokens(["a cat"])
    assert (features.tokens.shape[-1], features.summary.shape[-1]) == (text.width, text.summary)


@pytest.mark.parametrize(("size", "stages"), [(0, layouts.LITE0_STAGES), (2, layouts.LITE2_STAGES)])
def test_a_lite_network_has_the_shape_in_the_registry(size, stages, tmp_path):
    torch.save(layouts.lite0(stages), tmp_path / "w.pth")
    spec = f"efficientnet-lite{size}:{tmp_path / 'w.pth'}"
    assert_shape_of_teacher(spec, open_teacher(spec, 64), 64)


@pytest.mark.parametrize(
    ("name", "width", "patch"),
    [("vit_small_patch16_dinov3.lvd1689m", 384, 16), ("vit_large_patch14_dinov2.lvd142m", 1024, 14)],
)
def test_the_shape_of_a_timm_teacher_needs_no_weights(name, width, patch):
    shape = shape_of(f"timm:{name}:nowhere.pth", "image")
    assert (shape.network, shape.width, shape.summary, shape.patch) == (f"timm:{name}", width, width, patch)


def test_the_shape_of_what_is_no_dense_teacher_is_refused():
    with pytest.raises(UserError, match="has no class token"):
        shape_of("timm:resnet18", "image")
    with pytest.raises(UserError, match="did you mean"):
        shape_of("timm:vit_smal_patch16_dinov3", "image")
