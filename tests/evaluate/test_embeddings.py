"""Embedded once, kept by weights, data and preprocessing, never stale."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from dinorankclip.data import row_store
from dinorankclip.data.benchmark_sets import SetLocation, open_set
from dinorankclip.data.damage import Damage
from dinorankclip.evaluate.during_training import RetrievalEvaluator
from dinorankclip.evaluate.embeddings import EmbeddingStore, embed_images, embed_texts
from dinorankclip.evaluate.scores_file import read_scores, write_training_scores
from dinorankclip.types import ImageSpec, UserError
from tests.set_making import NAMES, ColourModel, patch, write_captions, write_classes, write_tar


@pytest.fixture
def source(tmp_path):
    return open_set(SetLocation("a", str(write_classes(tmp_path / "a")))).open("test")


def test_texts_come_back_in_their_order():
    model = ColourModel()
    texts = [f"{'very ' * (n % 5)}nice {NAMES[n % 4]}" for n in range(1100)]
    rows = embed_texts(model.encode_text, model.tokenizer, texts)
    assert rows.argmax(1).tolist() == [n % 4 for n in range(1100)]


def test_two_kinds_in_one_pass_and_nothing_twice(tmp_path, source):
    model, store = ColourModel(), EmbeddingStore(tmp_path / "kept")
    first = store.images(model, source, ("embedding", "features"))
    assert model.images_seen == 12 and first.rows["features"].shape == (12, 3)
    again = store.images(model, source, ("features", "embedding"))
    assert model.images_seen == 12
    for kind in ("embedding", "features"):
        assert torch.equal(first.rows[kind], again.rows[kind]) and again.rows[kind].dtype == torch.float32
    assert torch.equal(store.texts(model, ["a cat", "a dog"]), store.texts(model, ["a cat", "a dog"]))
    assert model.texts_read == 2


def test_other_weights_data_preprocessing_or_precision_are_other_keys(tmp_path, source):
    store, counted = EmbeddingStore(tmp_path / "kept"), ColourModel()
    store.images(counted, source)
    for change in ("identity", "image_spec", "placement"):
        model = ColourModel()
        new = {"identity": "other", "image_spec": ImageSpec(8), "placement": replace(model.placement, precision="bf16")}
        setattr(model, change, new[change])
        store.images(model, source)
        assert model.images_seen == 12, change
    other = open_set(SetLocation("b", str(write_classes(tmp_path / "b", labels=(1,) * 12)))).open("test")
    store.images(counted, other)
    assert counted.images_seen == 24


def test_code_that_shows_another_picture_is_another_key(tmp_path, source, monkeypatch):
    from dinorankclip.evaluate import embeddings

    store, model = EmbeddingStore(tmp_path / "kept"), ColourModel()
    store.images(model, source)
    monkeypatch.setattr(embeddings, "_trial_picture", lambda spec: bytes(spec.size))
    store.images(model, source)
    assert model.images_seen == 24


def test_without_a_folder_nothing_is_kept(source):
    model = ColourModel()
    EmbeddingStore(None).images(model, source)
    found = EmbeddingStore(None).images(model, source)
    assert model.images_seen == 24 and found.indices.tolist() == list(range(12))


def test_a_damaged_or_unfinished_folder_is_made_anew(tmp_path, source):
    store, model = EmbeddingStore(tmp_path / "kept"), ColourModel()
    rows = store.images(model, source).rows["embedding"].clone()
    folder = next((tmp_path / "kept").iterdir())
    assert json.loads((folder / "about.json").read_text())["rows"] == 12
    (folder / "rows.npy").write_bytes((folder / "rows.npy").read_bytes()[:200])
    assert torch.equal(store.images(model, source).rows["embedding"], rows) and model.images_seen == 24

    class Stops(ColourModel):
        identity = "stops"

        def encode_image(self, images):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.images(Stops(), source)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [folder.name]


def test_a_killed_pass_goes_on_where_it_stopped(tmp_path, source, monkeypatch):
    monkeypatch.setattr(row_store, "BLOCK", 4)
    store, whole = EmbeddingStore(tmp_path / "kept"), EmbeddingStore(None).images(ColourModel(), source)

    class Stops(ColourModel):
        def encode_image(self, images):
            if self.images_seen == 8:
                raise KeyboardInterrupt
            return super().encode_image(images)

    with pytest.raises(KeyboardInterrupt):
        store.images(Stops(), source)
    model = ColourModel()
    assert torch.equal(store.images(model, source).rows["embedding"], whole.rows["embedding"])
    assert model.images_seen == 4


def test_damaged_images_are_left_out_and_remembered(tmp_path):
    folder = write_classes(tmp_path / "a")
    members = [m for n in range(6) for m in ((f"s{n}.jpg", patch(n % 4)), (f"s{n}.cls", str(n % 4).encode()))]
    members[4] = ("s2.jpg", b"no image")
    write_tar(folder / "test" / "0.tar", members)
    source = open_set(SetLocation("a", str(folder))).open("test")
    store = EmbeddingStore(tmp_path / "kept")
    for _ in range(2):
        found = store.images(ColourModel(), source)
        assert found.indices.tolist() == [0, 1, 3, 4, 5] and found.damaged == [("s2", "not-an-image")]
        assert found.rows["embedding"].argmax(1).tolist() == [0, 1, 3, 0, 1]


def test_a_full_disk_costs_the_keeping_and_nothing_else(tmp_path, source, monkeypatch):
    def no_room(*arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr(row_store, "_reserve", no_room)
    found = EmbeddingStore(tmp_path / "kept").images(ColourModel(), source)
    assert found.rows["embedding"].shape == (12, 4) and not list((tmp_path / "kept").iterdir())


def test_a_broken_model_is_an_error_and_not_a_score(source):
    with pytest.raises(UserError, match="non-finite"):
        embed_images({"embedding": lambda images: torch.full((len(images), 4), np.nan)}, source, ImageSpec(16))


def test_scores_taken_during_training_keep_their_items(tmp_path):
    source = open_set(SetLocation("pairs", str(write_captions(tmp_path / "pairs")))).open("test")
    model = ColourModel()
    evaluator = RetrievalEvaluator("val", source, model.image_spec, model.tokenizer)
    found = dict(evaluator(model))
    assert found["i2t R@1"] == found["mean R@1"] == 1.0 and found["chance R@1"] == 0.25 and found["images"] == 4
    scores = {f"val/{score.name}": score for score in evaluator.scores}
    write_training_scores(tmp_path, {"step": 1, "scores": {"val/t2i R@1": 1.0}}, scores)
    items = read_scores(tmp_path).trained["val/t2i R@1"].items
    assert items.values.tolist() == [1.0] * 8 and items.clusters.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_disk_that_was_away_is_not_remembered(tmp_path, source, monkeypatch):
    store, model = EmbeddingStore(tmp_path / "kept"), ColourModel()
    read = type(source).read

    def away(self, index):
        if index == 1:
            raise Damage("unreadable", "stale handle")
        return read(self, index)

    with monkeypatch.context() as patched:
        patched.setattr(type(source), "read", away)
        assert store.images(model, source).damaged == [(source.key(1), "unreadable")]
    assert store.images(model, source).damaged == [] and len(store.images(model, source).indices) == len(source)
    seen = model.images_seen
    causes = next((tmp_path / "kept").glob("*/causes.npy"))  # as a process leaves it that stops at the damage
    codes = bytearray(causes.read_bytes())
    codes[row_store.HEADER + 1] = row_store.UNREADABLE - row_store.MISSING
    causes.write_bytes(codes)
    assert store.images(model, source).damaged == [] and model.images_seen == seen + len(source)
    assert store.images(model, source).damaged == [] and model.images_seen == seen + len(source)
