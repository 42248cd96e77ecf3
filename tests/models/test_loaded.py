import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from dinorankclip import device
from dinorankclip.data.decode import decode
from dinorankclip.data.samples import render_whole
from dinorankclip.models import loaded
from dinorankclip.models.joint import JointModel
from dinorankclip.models.loaded import load_model
from dinorankclip.types import UserError
from tests.models.model_making import CAPTIONS, photo, saved, small_config, small_model


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return load_model(saved(tmp_path_factory.mktemp("plain") / "model", small_model(seed=1)))


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    return load_model(saved(tmp_path_factory.mktemp("fused") / "model", small_model("full", seed=1)))


def pictures(count=5, size=32):
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("variant", [None, "concat", "additive", "single-scale", "spp", "spp-cbam", "full"])
def test_a_loaded_model_gives_the_embeddings_of_the_saved_one(tmp_path, variant):
    model = small_model(variant, seed=3).eval()
    found = load_model(saved(tmp_path / "model", model))
    ids = found.tokenizer(CAPTIONS)
    assert torch.equal(found.encode_image(pictures()), model.encode_image(pictures()))
    assert torch.equal(found.encode_text(ids), model.encode_text(ids))
    torch.testing.assert_close(found.encode_text(CAPTIONS), model.encode_text(ids), atol=1e-6, rtol=0)
    assert found.dim == 32 and found.image_spec.size == 32 and found.text_spec.context_length == 77


def test_device_and_precision_come_with_a_reason(plain, tmp_path):
    assert plain.device == torch.device("cpu") or plain.device.type == "cuda"
    assert "fp32" in plain.reason or "bf16" in plain.reason
    folder = saved(tmp_path / "model", small_model(seed=1))
    # Not run: on a CPU without bf16 instructions a single product may take minutes.
    half = load_model(folder, device="cpu", precision="bf16")
    assert half.reason.startswith("bf16 on cpu, as asked; without native support it is far slower, and some CPUs")
    assert load_model(folder, device="cpu").reason == "running in fp32 on the CPU"
    assert half.placement.precision == "bf16"
    for wrong in ({"device": "gpu"}, {"precision": "fp8"}):
        with pytest.raises(UserError, match=r"gpu|fp8"):
            load_model(folder, **wrong)


def test_rows_are_ordinary_tensors_of_length_one(plain):
    rows = plain.encode_image(pictures())
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(5))
    assert not rows.requires_grad and not rows.is_inference()
    head = torch.nn.Linear(32, 2)
    head(rows).sum().backward()  # an inference tensor could not be saved for backward
    raw = plain.encode_text(CAPTIONS, normalize=False)
    torch.testing.assert_close(F.normalize(raw, dim=-1), plain.encode_text(CAPTIONS))
    assert float((raw.norm(dim=1) - 1).abs().max()) > 1e-3


def test_pieces_do_not_change_the_rows(plain, monkeypatch):
    whole = plain.encode_image(pictures(7)), plain.encode_text(CAPTIONS), plain.look(pictures(7)).trunk_tokens
    monkeypatch.setattr(loaded, "PIXELS_AT_ONCE", 2 * 32 * 32)
    monkeypatch.setattr(loaded, "TEXTS_AT_ONCE", 3)
    cut = plain.encode_image(pictures(7)), plain.encode_text(CAPTIONS), plain.look(pictures(7)).trunk_tokens
    for ours, theirs in zip(cut, whole):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert plain.encode_image(pictures(0)).shape == plain.encode_text([]).shape == (0, 32)


def test_pixels_may_be_normalised_already(plain):
    spec = plain.image_spec
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (spec.mean, spec.std))
    normalised = (pictures() / 255 - mean) / std
    torch.testing.assert_close(plain.encode_image(normalised), plain.encode_image(pictures()), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (pictures(2, 48), r"\[B, 3, 32, 32\], not \[2, 3, 48, 48\]"),
        (pictures()[0], r"not \[3, 32, 32\]"),
        (pictures().long(), "int64"),
        (pictures().float(), "must be normalised"),
        (torch.full((1, 3, 32, 32), torch.nan), "must be normalised"),
        (pictures().numpy(), "as a tensor, not ndarray"),
    ],
)
def test_wrong_images_are_refused(plain, images, says):
    with pytest.raises(UserError, match=says):
        plain.encode_image(images)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ("a dog", "put it in a list"),
        (["a dog", 3], "must be strings"),
        (torch.zeros(2, 78, dtype=torch.int64), "L up to 77"),
        (torch.zeros(2, 5), "integers"),
        (torch.full((1, 4), 50_000), "between 0 and 49407"),
        (torch.tensor([[49406, 5, 49407], [49406, 5, 6]]), "row 1 .* no end-of-text"),
    ],
)
def test_wrong_captions_are_refused(plain, texts, says):
    with pytest.raises(UserError, match=says):
        plain.encode_text(texts)


def test_every_kind_of_picture_is_shown_as_evaluation_shows_it(plain, tmp_path):
    image = photo()
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    (tmp_path / "photo.png").write_bytes(buffer.getvalue())
    pixels = decode(buffer.getvalue())
    expected = render_whole(pixels, 32)
    for kind in (image, buffer.getvalue(), tmp_path / "photo.png", str(tmp_path / "photo.png"), np.asarray(image)):
        assert torch.equal(plain.preprocess(kind), expected)
    assert expected.shape == (3, 32, 32) and expected.dtype == torch.uint8


def test_an_opened_picture_is_turned_upright_and_laid_on_white(plain):
    exif = Image.Exif()
    exif[0x0112] = 6  # stored rows are upright columns
    turned, plain_bytes = io.BytesIO(), io.BytesIO()
    photo().save(turned, "PNG", exif=exif)
    photo().transpose(Image.Transpose.ROTATE_270).save(plain_bytes, "PNG")
    expected = plain.preprocess(plain_bytes.getvalue())
    assert torch.equal(plain.preprocess(Image.open(io.BytesIO(turned.getvalue()))), expected)
    assert torch.equal(plain.preprocess(turned.getvalue()), expected)
    clear = Image.new("RGBA", (40, 40), (255, 0, 0, 0))
    assert int(plain.preprocess(clear).min()) == 255


def test_bad_pictures_are_named(plain, tmp_path):
    (tmp_path / "notes.txt").write_text("no picture")
    with pytest.raises(UserError, match=r"notes\.txt: no known image format"):
        plain.preprocess(tmp_path / "notes.txt")
    with pytest.raises(UserError, match=r"gone\.jpg cannot be read"):
        plain.preprocess(tmp_path / "gone.jpg")
    with pytest.raises(UserError, match="ends too early"):
        buffer = io.BytesIO()
        photo().save(buffer, "JPEG")
        plain.preprocess(buffer.getvalue()[:-200])
    with pytest.raises(UserError, match=r"uint8 \[H, W, 3\]"):
        plain.preprocess(np.zeros((4, 4)))
    with pytest.raises(UserError, match="not list"):
        plain.preprocess([1])


def test_looking_inside_a_trunk(plain):
    seen, read = plain.look(pictures()), plain.read(CAPTIONS)
    assert torch.equal(seen.embedding, seen.contrastive) and seen.trunk_tokens.shape == (5, 4, 4, 32)
    assert seen.tokens is seen.gate is seen.angle is read.tokens is read.gate is read.angle is None
    torch.testing.assert_close(read.embedding, plain.encode_text(CAPTIONS), atol=1e-6, rtol=0)


def test_looking_inside_a_fused_model(fused):
    seen, read = fused.look(pictures()), fused.read(CAPTIONS)
    assert seen.tokens.shape == (5, *fused.parts.image_student.grid, 64) and seen.gate.shape == (5, 32)
    assert read.tokens.shape == (4, 12, 64) and read.mask.sum(1).tolist() == [4, 11, 1, 3]
    for reading in (seen, read):
        cosine = (reading.embedding.double() * reading.contrastive.double()).sum(1).clamp(max=1)
        torch.testing.assert_close(reading.angle.double(), cosine.arccos().rad2deg(), atol=0.05, rtol=0)
        assert 0 < float(reading.angle.mean()) < 2 and 0 < float(reading.gate.mean()) < 0.05
    torch.testing.assert_close(seen.embedding, fused.encode_image(pictures()), atol=1e-6, rtol=0)


def test_features_before_the_projection(plain, fused):
    pooled = plain.image_features(pictures())
    assert pooled.shape == (5, 32)
    projected = F.normalize(pooled @ plain.parts.trunk.towers.visual.proj, dim=-1)
    torch.testing.assert_close(projected, plain.encode_image(pictures()), atol=1e-6, rtol=0)
    both = fused.image_features(pictures())
    assert both.shape == (5, 32 + 64)
    student = fused.parts.image_student(fused.parts.normalised(pictures())).summary
    torch.testing.assert_close(both[:, 32:], student, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("tower", "width", "grid"),
    [
        ({"timm_model_name": "convnext_atto", "timm_pool": "", "timm_proj": "linear", "image_size": 64}, 320, 2),
        ({"layers": [1, 1, 1, 1], "width": 8, "image_size": 64}, 256, 2),
    ],
)
def test_other_towers_have_features_too(tower, width, grid):
    model = loaded.LoadedModel(JointModel(small_config(**tower)), "x", device.choose("cpu"))
    images = pictures(2, 64)
    assert model.image_features(images).shape == (2, width)
    assert model.look(images).trunk_tokens.shape == (2, grid, grid, width)


def test_identity_is_of_the_weights_not_of_the_file(tmp_path):
    model = small_model("full", seed=3)
    first = load_model(saved(tmp_path / "a", model))
    again = load_model(saved(tmp_path / "b", load_model(tmp_path / "a").parts, seal=True))
    assert first.identity == again.identity and len(first.identity) == 32
    assert load_model(saved(tmp_path / "c", small_model("full", seed=4))).identity != first.identity
    assert load_model(saved(tmp_path / "d", small_model("spp", seed=3))).identity != first.identity
    with torch.no_grad():
        model.trunk.towers.visual.proj[0, 0] += 1e-3
    assert load_model(saved(tmp_path / "e", model)).identity != first.identity


def test_loading_draws_nothing(tmp_path):
    folder = saved(tmp_path / "model", small_model("full", seed=3))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = load_model(folder).parts.state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(found[name], tensor) for name, tensor in small_model("full", seed=3).state_dict().items())
