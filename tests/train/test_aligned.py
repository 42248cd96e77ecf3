"""`--recipe aligned`: rows equal pixels, towers never change, a run resumes, exports and refuses like any other."""

import json
from contextlib import closing

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dinorankclip import load_model
from dinorankclip.checksums import CHECKSUMS
from dinorankclip.commands.train import run
from dinorankclip.config import as_dict
from dinorankclip.models.aligned import TOWERS
from dinorankclip.models.export_model import write_export
from dinorankclip.models.folder import load_folder
from dinorankclip.train.aligned_setup import batch_and_epochs, head_weight_for
from dinorankclip.train.assemble import assemble, open_rows
from dinorankclip.train.step import backward
from dinorankclip.types import Progress, UserError
from tests.teachers.test_text_teachers import minilm_folder
from tests.train.running import settings_from, small_pairs

FLAGS = (
    *("--recipe", "aligned", "--aligned.image-tower", "random-vit:1", "--aligned.image-size", "32"),
    *("--aligned.text-tower", "random-text:1", "--aligned.hidden", "32", "--aligned.dim", "16", "--aligned.start"),
    *("random", "--aligned.token-width", "24", "--aligned.text-places", "8", "--aligned.fused", "image+text"),
    *("--fusion.variant", "full"),
    *("--budget.batch", "16", "--budget.epochs", "2", "--budget.threads", "1", "--record.no-tensorboard"),
)


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory):
    """Rows are stored under the current folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("here"))
        yield


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs", train=48, val=12)


@pytest.fixture(scope="module")
def trained(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "aligned"
    assert run(settings_from(*FLAGS, "--data", pairs, "--run", folder), restart=False, dry=False)
    return folder


def test_rows_equal_pixels(pairs):
    parts = assemble(settings_from(*FLAGS, "--data", pairs))
    model = parts.state.model.eval()
    from dinorankclip.data.samples import iterate_pairs

    val = parts.held_out["val"]
    _, images, captions = next(iterate_pairs(val, model.image_spec, 12))
    stored = torch.stack([parts.frozen.rows["val"](place) for place in range(12)])
    torch.testing.assert_close(model.encode_image(images), model.encode_image(stored), atol=1e-5, rtol=0)
    first = [group[0] for group in captions]
    ids = model.tokenizer()(first)
    torch.testing.assert_close(model.encode_text(ids), model.encode_text(parts.tokenizer(first)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["train", "captions"])
def test_a_worker_elsewhere_opens_the_same_rows(pairs, name):
    settings = settings_from(*FLAGS, "--data", pairs)
    parts = assemble(settings)
    pieces = open_rows({"settings": json.loads(json.dumps(as_dict(settings))), "rows": name})
    assert pieces.missing() == []  # they are those of this run, by their name
    before = np.array(pieces.store().rows())
    rows, _ = pieces.compute(range(min(4, pieces.count)), lambda items: None)
    np.testing.assert_allclose(rows, before[:4], atol=1e-5)
    assert name == "captions" or parts.frozen.rows["train"].folder == pieces.folder


def test_only_heads_and_fusions_learn(pairs):
    parts = assemble(settings_from(*FLAGS, "--data", pairs))
    model = parts.state.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with closing(iter(parts.loader)) as batches:
        for step in range(3):
            backward(model, parts.state.objective, next(batches), Progress(step, 6, 2), parts.placement)
            parts.state.updater.step(Progress(step, 6, 2), model.logit_scale)
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert not any(name.startswith(TOWERS) for name in moved)
    assert {name.split(".")[0] for name in moved} == {
        "image_head", "text_head", "image_fusion", "text_fusion", "logit_scale",
    }  # fmt: skip


def test_chunks_give_the_same_gradient(pairs):
    gradients = []
    for chunk in (None, 5):
        parts = assemble(settings_from(*FLAGS, "--data", pairs, "--aligned.dropout", "0"))
        with closing(iter(parts.loader)) as batches:
            backward(parts.state.model, parts.state.objective, next(batches), Progress(0, 6, 2), parts.placement, chunk)
        gradients.append({n: p.grad for n, p in parts.state.model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-6, rtol=1e-4)


def test_a_run_is_an_ordinary_model_folder(trained, pairs):
    scores = json.loads((trained / "scores.json").read_text())["scores"]
    assert "test/i2t R@1" in scores or any(name.startswith("test/") for name in scores)
    weights = load_file(trained / "checkpoints" / "last" / "model.safetensors")
    assert not any(name.startswith(TOWERS) for name in weights), "towers are named, not stored with each checkpoint"
    model = load_model(trained, device="cpu")
    rows = model.encode_text(["red cat", "huge boat"])
    assert rows.shape == (2, 16)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(2))
    details = model.look(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    assert details.tokens.shape == (1, 2, 2, 24) and details.gate.shape == (1, 16)


def test_resumed_equals_uninterrupted(trained, pairs, tmp_path):
    from dinorankclip.train import checkpoints

    settings = settings_from(*FLAGS, "--data", pairs, "--run", tmp_path / "again", "--record.save-every", "2")
    parts = assemble(settings)
    assert parts.length.steps == 6
    with closing(iter(parts.loader)) as batches:
        for step in range(2):
            backward(parts.state.model, parts.state.objective, next(batches), Progress(step, 6, 2), parts.placement)
            parts.state.updater.step(Progress(step, 6, 2), parts.state.model.logit_scale)
            parts.state.step += 1
    from dinorankclip.config import as_dict
    from dinorankclip.train.run_folder import claim

    claim(tmp_path / "again", as_dict(settings), False)
    checkpoints.save(parts.state, tmp_path / "again" / "checkpoints", 2)
    assert run(settings, restart=False, dry=False)
    ours, theirs = (
        load_file(folder / "checkpoints/last/model.safetensors") for folder in (tmp_path / "again", trained)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_export_brings_its_towers(pairs, tmp_path, monkeypatch):
    minilm_folder(tmp_path / "bert")
    flags = (*FLAGS, "--aligned.text-tower", f"minilm:{tmp_path / 'bert'}", "--budget.epochs", "1")
    assert run(settings_from(*flags, "--data", pairs, "--run", tmp_path / "run"), restart=False, dry=False)
    write_export(str(tmp_path / "run"), tmp_path / "out", ["folder"])
    model = load_folder(tmp_path / "out")
    described = json.loads((tmp_path / "out" / "model.json").read_text())["aligned"]
    assert described["text"]["spec"] == "minilm", "no path of this machine"
    loaded = load_model(tmp_path / "out", device="cpu")
    rows = loaded.encode_text(["a red jacket"])
    again = model.encode_text(model.tokenizer()(["a red jacket"]))
    torch.testing.assert_close(rows, again, atol=1e-6, rtol=0)
    assert "minilm, licence" in (tmp_path / "out" / "README.md").read_text()
    # With named towers the folder asks for the installed ones, whose weights must be the same.
    write_export(str(tmp_path / "run"), tmp_path / "named", ["folder"], towers="named")
    assert not (tmp_path / "named" / "towers").exists()


def test_other_tower_weights_are_refused(trained, tmp_path):
    import shutil

    shutil.copytree(trained / "checkpoints" / "last", tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    config = json.loads(path.read_text())
    config["towers"]["image"] = "random-vit:9"
    path.write_text(json.dumps(config))
    (tmp_path / "model" / CHECKSUMS).unlink()
    with pytest.raises(UserError, match="other weights than the tower this model was trained with"):
        load_folder(tmp_path / "model")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--distil.cache", "auto"), "leave out --distil.cache"),
        (("--reading.flip",), "looks at every whole image once"),
        (("--aligned.dropout", "1"), "a share, 0 to below 1"),
        (("--aligned.text-tower", "timm:x"), "no text teacher"),
        (("--aligned.text-tower", "minilm:/nowhere"), "config.json is missing"),
    ],
)
def test_contradictions_are_refused(pairs, flags, message):
    with pytest.raises(UserError, match=message):
        assemble(settings_from(*FLAGS, "--data", pairs, *flags))


def test_the_starter_weighs_more_where_pairs_are_few():
    assert [head_weight_for(pairs) for pairs in (16, 50, 100, 200, 6000)] == [0.4, 0.5, 0.71, 1.0, 1.0]


def test_batch_and_epochs_follow_the_number_of_pairs():
    assert batch_and_epochs(6000, 6000)[0] == 512
    assert batch_and_epochs(50, 50)[0] == 8
    with pytest.raises(UserError, match="3 training pairs are too few"):
        batch_and_epochs(3, 3)
