"""A frozen image side: what it says is computed once, it stays as it is, and training equals training with pixels."""

import dataclasses
import json
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from safetensors.torch import load_file

from dinorankclip.config import as_dict
from dinorankclip.data import row_store
from dinorankclip.data.damage import Damage
from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.splits import SplitPart
from dinorankclip.evaluate.during_training import RetrievalEvaluator, evaluators
from dinorankclip.models.folder import load_folder, save_model
from dinorankclip.models.joint import FusionDesign, JointModel, Students
from dinorankclip.stored_settings import difference
from dinorankclip.train import checkpoints, frozen_rows
from dinorankclip.train.assemble import assemble, open_rows, resume
from dinorankclip.train.frozen_rows import IMAGE_SIDE, RowMaker
from dinorankclip.train.step import backward
from dinorankclip.types import ImageSpec, Progress, UserError
from tests.train.running import run_to_end, settings_from, small_pairs
from tests.train.test_processes import largest_differences

STEPS = 4
SMALL = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "patch_size": 16, "width": 32, "layers": 2, "head_width": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory):
    """Rows and indexes are kept under the current folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("here"))
        yield


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs", train=48, val=12)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("start"), seed=3)


def model_folder(folder, seed, **parts):
    save_model(JointModel(SMALL, seed, **parts), folder)
    return folder


def settings_of(pairs, *flags):
    quick = ["--data", pairs, "--budget.batch", "16", "--budget.threads", "1", "--budget.epochs", "2"]
    quick += ["--reading.workers", "0"]
    return settings_from(*quick, *flags)


def frozen(start, *flags):
    return ["--init", start, "--model.frozen-image-tower", *flags]


def go(parts, steps):
    """Losses of some steps from where `parts` stands."""
    losses = []
    with closing(iter(parts.loader)) as batches:
        for _, batch in zip(range(steps), batches):
            progress = Progress(parts.state.step, parts.length.steps, 2)
            terms = backward(
                parts.state.model, parts.state.objective, batch, progress, parts.placement, parts.settings.budget.chunk
            )
            parts.state.updater.step(progress, parts.state.model.trunk.logit_scale)
            parts.state.step += 1
            losses.append(float(terms.total.detach()))
    return losses


def of_images(weights):
    return {name: tensor for name, tensor in weights.items() if name.startswith(IMAGE_SIDE)}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ------------------------------------------------------------------------------------------------------- training


def test_the_image_side_stays_and_the_rest_learns(pairs, start, tmp_path):
    before = load_folder(start).state_dict()
    parts = assemble(settings_of(pairs, *frozen(start)))
    batch = next(iter(parts.loader))
    assert batch.images.shape == (16, 32) and batch.images.dtype == torch.float32
    go(parts, STEPS)
    after = parts.state.model.state_dict()
    assert same(of_images(before), of_images(after)) and len(of_images(before)) > 10
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved >= {"trunk.towers.logit_scale", "trunk.towers.text_projection", "trunk.towers.token_embedding.weight"}
    trained = {name.split("/")[0] for name in parts.state.updater.state()}
    assert trained and not any(name.startswith(tuple(f"model.{side}" for side in IMAGE_SIDE)) for name in trained)
    checkpoints.save(parts.state, tmp_path, keep=1)
    assert same(load_folder(tmp_path).state_dict(), after)


@pytest.mark.parametrize("flags", [("--method", "clip"), ("--method", "rank", "--loss.no-staged"), ("--method=alip",)])
def test_equals_a_run_that_looks_at_the_pixels(pairs, start, flags):
    pixels = [*flags, "--init", start, "--optim.freeze", "trunk.towers.visual.*", "--reading.crop-scale", "1", "1"]
    expected = go(assemble(settings_of(pairs, *pixels)), STEPS)
    assert go(assemble(settings_of(pairs, *flags, *frozen(start))), STEPS) == pytest.approx(expected, abs=1e-5)
    in_chunks = assemble(settings_of(pairs, *flags, *frozen(start, "--budget.chunk", "6")))
    assert go(in_chunks, STEPS) == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) == STEPS


def test_a_resumed_run_is_the_same_run(pairs, start, tmp_path):
    settings = settings_of(pairs, *frozen(start, "--method", "rank"))
    whole = assemble(settings)
    losses = go(whole, 6)
    first = assemble(settings)
    assert go(first, 3) == losses[:3]
    checkpoints.save(first.state, tmp_path / "checkpoints", keep=1)
    again = assemble(settings)
    resume(again, tmp_path)
    assert go(again, 3) == losses[3:]
    assert same(whole.state.model.state_dict(), again.state.model.state_dict())


def test_a_start_that_has_changed_is_no_start_to_resume_from(pairs, tmp_path):
    start = model_folder(tmp_path, seed=5)
    settings = settings_of(pairs, *frozen(start))
    parts = assemble(settings)
    checkpoints.save(parts.state, tmp_path / "run" / "checkpoints", keep=1)
    model_folder(tmp_path, seed=6)
    with pytest.raises(UserError, match=r"has changed since.*--restart"):
        resume(assemble(settings), tmp_path / "run")


def test_a_fused_start_stays_fused_and_its_text_side_learns(pairs, tmp_path):
    parts_of = {"students": Students("vit-micro", "vit-micro"), "fusion": FusionDesign("full")}
    start = model_folder(tmp_path, seed=7, **parts_of)
    before = load_folder(start)
    parts = assemble(settings_of(pairs, *frozen(start)))
    batch = next(iter(parts.loader))
    place = int(batch.keys[0])
    pixels = next(iter_pixels(pairs, "train", place))
    assert torch.allclose(before.eval().encode_image(pixels, normalize=False)[0], batch.images[0], atol=1e-5)
    go(parts, 2)
    one, other = before.state_dict(), parts.state.model.state_dict()
    assert same(of_images(one), of_images(other))
    assert {name.split(".")[0] for name in of_images(one)} == {"trunk", "image_student", "image_fusion"}
    moved = {name.split(".")[0] for name in one if not torch.equal(one[name], other[name])}
    assert moved == {"trunk", "text_student", "text_fusion"}


def iter_pixels(pairs, split, index):
    from dinorankclip.data.samples import iterate_pairs

    source = SplitPart(open_pairs(pairs, None, split), [index])
    for _keys, pixels, _captions in iterate_pairs(source, ImageSpec(32)):
        yield pixels


def test_scores_are_those_of_the_pixels(pairs, start):
    parts = assemble(settings_of(pairs, *frozen(start)))
    go(parts, 1)
    model = parts.state.model.eval()
    watching = evaluators(parts, "val", "test")
    assert [evaluator.name for evaluator in watching] == ["val", "test"]
    for evaluator in watching:
        by_pixels = RetrievalEvaluator(evaluator.name, evaluator.source, evaluator.image, parts.tokenizer)
        assert dict(evaluator(model)) == dict(by_pixels(model))


@pytest.mark.long
def test_two_processes_equal_one(pairs, start, tmp_path, monkeypatch):
    script = Path(__file__).with_name("record_gradients.py")
    found = []
    for processes in (1, 2):
        (tmp_path / str(processes)).mkdir()
        monkeypatch.chdir(tmp_path / str(processes))  # rows of its own
        torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
        changes = json.dumps({"init": str(start), "model.frozen_image_tower": True})
        words = [sys.executable, *torchrun, script, "found", pairs, "clip", changes]
        run_to_end([str(word) for word in words])
        found.append(load_file("found"))
    assert not any(".visual." in name for name in found[0])
    losses, gradients = largest_differences(*found)
    assert losses < 1e-5 and gradients < 1e-5, (losses, gradients)


# --------------------------------------------------------------------------------------------------- stored rows


class Counting:
    """An encoder that knows how many images it saw, and can be stopped as a kill would stop it."""

    def __init__(self, dies_after=10**9, scale=1.0):
        self.seen, self.dies_after, self.scale = 0, dies_after, scale

    def __call__(self, pixels):
        if self.seen >= self.dies_after:
            raise KeyboardInterrupt
        self.seen += len(pixels)
        return self.scale * pixels.float().mean((2, 3))


def maker(encode, identity="a model", **changes):
    return RowMaker(encode, identity, ImageSpec(**({"size": 32} | changes)), dim=3, max_pixels=10**6)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_killed_and_resumed_gives_the_same_bytes(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(row_store, "BLOCK", 16)
    monkeypatch.setattr(frozen_rows, "BATCH", 8)
    source = open_pairs(pairs, None, "train")
    whole = Counting()
    monkeypatch.setattr(frozen_rows, "FOLDER", tmp_path / "whole")
    expected = files(maker(whole).make(source, "train").folder)
    assert whole.seen == 48 and set(expected) == {"about.json", "causes.npy", "hashes.npy", "rows.npy"}
    monkeypatch.setattr(frozen_rows, "FOLDER", tmp_path / "broken")
    with pytest.raises(KeyboardInterrupt):
        maker(Counting(dies_after=24)).make(source, "train")
    rest = Counting()
    rows = maker(rest).make(source, "train")
    assert rest.seen == 32  # the block that was not finished, and the one after it
    assert files(rows.folder) == expected
    idle = Counting()
    again = maker(idle).make(source, "train")
    assert idle.seen == 0 and torch.equal(again(47), rows(47))
    assert rows(20).tolist() == pytest.approx(next(iter_pixels(pairs, "train", 20)).float().mean((2, 3))[0].tolist())
    for name in ("rows.npy", "causes.npy"):  # a damaged disk: nothing that the files say is believed
        (rows.folder / name).write_bytes(expected[name][:-7])
        mending = Counting()
        maker(mending).make(source, "train")
        assert mending.seen == 48 and files(rows.folder) == expected
    (rows.folder / "rows.npy").unlink()
    maker(Counting()).make(source, "train")
    assert files(rows.folder) == expected


def test_images_that_could_not_be_read_are_looked_at_again(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(frozen_rows, "FOLDER", tmp_path)
    source = open_pairs(pairs, None, "train")
    whole = source.image

    def away(index):
        if index == 3:
            raise Damage("unreadable", "input/output error")
        return whole(index)

    source.image = away
    with pytest.raises(Damage, match="unreadable"):
        maker(Counting()).make(source, "train")(3)
    source.image = whole
    assert maker(Counting()).make(source, "train")(3).isfinite().all()
    idle = Counting()
    maker(idle).make(source, "train")
    assert idle.seen == 0


def test_whatever_changes_is_computed_anew(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(frozen_rows, "FOLDER", tmp_path)
    train, val = open_pairs(pairs, None, "train"), open_pairs(pairs, None, "val")
    known = maker(Counting()).make(train, "train")
    for other, source in (
        (maker(Counting(scale=2.0), identity="another"), train),
        (maker(Counting(), size=16), train),
        (maker(Counting(), mean=(0.5, 0.5, 0.5)), train),
        (dataclasses.replace(maker(Counting()), max_pixels=5), train),
        (maker(Counting()), val),
    ):
        assert other.folder(source) != known.folder and len(other.store(source).missing()) == 1
    anew = maker(Counting(scale=2.0), identity="another").make(train, "train")
    assert torch.equal(anew(0), 2 * known(0))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_second_run_and_another_method_use_the_rows_that_are_kept(pairs, start, capsys):
    assemble(settings_of(pairs, *frozen(start)))
    capsys.readouterr()
    parts = assemble(settings_of(pairs, *frozen(start, "--method", "cyclip", "--seed", "8")))
    assert capsys.readouterr().out.count("stored before") == 3
    folders = {rows.folder for rows in parts.frozen.rows.values()}
    other = assemble(settings_of(pairs, *frozen(start, "--reading.max-pixels", "1000000")))
    assert "embedded once" in capsys.readouterr().out
    assert not folders & {rows.folder for rows in other.frozen.rows.values()}


def test_a_worker_elsewhere_makes_the_same_rows(pairs, start, tmp_path, monkeypatch):
    settings = settings_of(pairs, *frozen(start))
    made = assemble(settings).frozen.rows["train"].folder
    expected = files(made)
    monkeypatch.setattr(frozen_rows, "FOLDER", tmp_path)
    pieces = open_rows({"settings": json.loads(json.dumps(as_dict(settings))), "rows": "train"})
    assert pieces.identity == made.name and pieces.missing() == [0] and pieces.sizes == [48]
    pieces.prepare()
    pieces.make(0, lambda items: None)
    assert files(tmp_path / made.name) == expected and pieces.missing() == []


@pytest.fixture
def photos(tmp_path):
    """A table of 40 photos, of which some are damaged; validation is carved from it."""
    draw = np.random.default_rng(1)
    (tmp_path / "images").mkdir()
    lines = ["image,caption"]
    for number in range(40):
        pixels = np.kron(draw.integers(0, 256, (4, 4, 3)), np.ones((12, 12, 1))).astype(np.uint8)
        data = simplejpeg.encode_jpeg(pixels)
        (tmp_path / "images" / f"{number}.jpg").write_bytes(data[:-200] if number in (3, 11, 30) else data)
        lines.append(f"images/{number}.jpg,{'' if number == 5 else f'photo {number} of something'}")
    lines.append("images/gone.jpg,a photo that is not there")
    (tmp_path / "photos.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "photos.csv"


def test_damaged_photos_are_replaced_as_with_pixels(photos, start):
    small = ["--budget.batch", "8", "--reading.val-fraction", "0.05"]
    parts = assemble(settings_of(photos, *frozen(start, *small)))
    pixels = assemble(settings_of(photos, "--init", start, "--reading.crop-scale", "1", "1", *small))
    with closing(iter(parts.loader)) as known, closing(iter(pixels.loader)) as seen:
        for _, one, other in zip(range(8), known, seen):
            assert (one.keys, one.captions, one.damage) == (other.keys, other.captions, other.damage)
    causes = parts.loader.damage.by_cause
    assert set(causes) == {"truncated", "missing-image", "empty-caption"} and causes["truncated"] >= 2


def test_a_photo_that_was_mended_is_seen_again(photos, start):
    small = ["--budget.batch", "8", "--reading.val-fraction", "0.05"]
    broken = photos.parent / "images" / "11.jpg"
    parts = assemble(settings_of(photos, *frozen(start, *small)))
    broken.write_bytes((photos.parent / "images" / "12.jpg").read_bytes())
    again = assemble(settings_of(photos, *frozen(start, *small)))
    place = [again.train.key(n) for n in range(len(again.train))].index("images/11.jpg")
    assert again.frozen.rows["train"](place).shape == (32,)
    assert again.frozen.rows["train"].folder != parts.frozen.rows["train"].folder
    assert again.state.data_fingerprint == parts.state.data_fingerprint


def test_mostly_damaged_photos_stop_before_training(tmp_path, start):
    lines = ["image,caption", *(f"{n}.jpg,photo {n}" for n in range(260))]
    (tmp_path / "photos.csv").write_text("\n".join(lines))
    (tmp_path / "0.jpg").write_bytes(b"")  # the others are not there
    with pytest.raises(UserError, match=r"more than reading\.max_damaged"):
        assemble(settings_of(tmp_path / "photos.csv", *frozen(start)))


# --------------------------------------------------------------------------------------------------------- flags


def test_a_dry_run_keeps_nothing(pairs, start, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(frozen_rows, "FOLDER", tmp_path / "features")
    parts = assemble(settings_of(pairs, *frozen(start)), dry=True)
    assert next(iter(parts.loader)).images.shape == (16, 32)
    assert not (tmp_path / "features").exists()
    assert "48 train images, embedded once: 0." in capsys.readouterr().out


def test_the_settings_say_what_is_seen(pairs, start):
    settings = settings_of(pairs, "--preset", "flickr8k", *frozen(start))
    assert settings.reading.crop_scale == (1.0, 1.0) and not settings.reading.flip
    older = as_dict(settings_of(pairs))
    del older["model"]["frozen_image_tower"]  # a run of a version without it goes on
    assert difference(older, as_dict(settings_of(pairs))) == []
    assert "model.frozen_image_tower: False → True" in difference(older, as_dict(settings))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--init .*or --model.weights"),
        (["--init", "x", "--distil.cache", "built/teacher"], "a teacher needs pixels"),
        (["--init", "x", "--method", "dinorankclip"], "use --method rank"),
        (["--init", "x", "--fusion.variant", "full"], "a fused --init stays fused"),
        (["--init", "x", "--method", "distil", "--distil.cache", "y"], "a teacher needs pixels"),
    ],
)
def test_what_cannot_be_frozen_is_refused(pairs, flags, message):
    with pytest.raises(UserError, match=message):
        settings_of(pairs, "--model.frozen-image-tower", *flags)


def test_streams_and_other_model_flags_are_refused(pairs, start):
    stream = f"pipe:cat {pairs}/train/0.tar::pipe:cat {pairs}/val/0.tar"
    with pytest.raises(UserError, match="pipe: shards are a stream"):
        assemble(settings_of(stream, *frozen(start, "--reading.epoch-samples", "48")))
    with pytest.raises(UserError, match=r"leave out --model\.\*"):
        assemble(settings_of(pairs, *frozen(start, "--model.trunk", "drc-small")))
