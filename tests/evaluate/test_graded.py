"""Ranking quality on built-in scenes, whose relevance is known."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dinorankclip import io
from dinorankclip.data.scenes.make import captioned_scene, make_scenes
from dinorankclip.data.scenes.relevance import caption_relevance_matrix, relevance_matrix
from dinorankclip.data.scenes.scene import holds_scenes, stored_scenes
from dinorankclip.evaluate.rank_metrics import graded_quality
from tests.data.scene_oracles import caption_relevance
from tests.train.running import small_pairs

COUNT, CAPTIONS = 60, 5


@pytest.fixture(scope="module")
def scenes():
    found = [captioned_scene(0, "test", index) for index in range(COUNT)]
    return {f"test-{index:06d}": (one.scene, one.contents) for index, one in enumerate(found)}


def test_captions_against_many_scenes_follow_the_single_form(scenes):
    mentions = [mention for _, reported in scenes.values() for mention in reported][:80]
    places = [scene for scene, _ in scenes.values()]
    slow = [[caption_relevance(mention, scene) for scene in places] for mention in mentions]
    found = caption_relevance_matrix(mentions, places)
    assert found.dtype == np.float32 and found == pytest.approx(np.array(slow), abs=1e-6)
    assert all(found[n, n // CAPTIONS] == 1 for n in range(80))  # what a caption says of its own scene is true


def units(*shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def quality(image, text, scenes, keys=None, **options):
    owner = np.repeat(np.arange(COUNT), CAPTIONS)
    return {score.name: score for score in graded_quality(image, text, keys or list(scenes), owner, scenes, **options)}


def test_random_embeddings_score_at_chance(scenes):
    runs = [quality(units(COUNT, 32, seed=s), units(COUNT * CAPTIONS, 32, seed=100 + s), scenes) for s in range(8)]
    assert len(runs[0]) == 9
    for name, first in runs[0].items():
        above = np.array([run[name].value - run[name].chance for run in runs])
        assert abs(above.mean()) < 3 * above.std(ddof=1) / len(above) ** 0.5, name
        assert first.n == len(first.items) == len(first.clusters) == COUNT


def test_embeddings_made_of_the_relevance_score_far_above_it(scenes):
    places = [scene for scene, _ in scenes.values()]
    mentions = [mention for _, reported in scenes.values() for mention in reported]
    image, text = torch.eye(COUNT), F.normalize(torch.from_numpy(caption_relevance_matrix(mentions, places)), dim=1)
    found = quality(image, text, scenes)
    # A caption's row of cosines is its row of relevances up to a factor.
    assert found["t2i tau-b"].value > 0.99 and found["t2i NDCG"].value > 0.999 and found["t2i NDCG@10"].value > 0.999
    seen = torch.linalg.cholesky(torch.from_numpy(relevance_matrix(places)).double() + 0.1 * torch.eye(COUNT)).float()
    found = quality(F.normalize(seen, dim=1), text, scenes)
    assert found["i2i tau-b"].value > 0.99 and found["i2i NDCG@10"].value > 0.999


def test_queries_are_drawn_by_the_seed(scenes):
    image, text = units(COUNT, 8), units(COUNT * CAPTIONS, 8, seed=1)
    few = quality(image, text, scenes, gallery=30, queries=10)["t2i tau-b"]
    again = quality(image, text, scenes, gallery=30, queries=10)["t2i tau-b"]
    assert few.n == 10 and len(set(few.clusters)) == 10
    assert few.clusters.tolist() == again.clusters.tolist() and few.value == again.value


def test_images_without_a_scene_are_passed_over(scenes):
    known = dict(list(scenes.items())[10:])
    found = quality(units(COUNT, 8), units(COUNT * CAPTIONS, 8, seed=1), known, keys=list(scenes))
    assert found["t2i tau-b"].n == COUNT - 10 and min(found["t2i tau-b"].clusters) >= 10


def test_scenes_come_back_from_their_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(io, "INDEX_FOLDER", tmp_path / "index")
    few = {"kinds_train": 1, "kinds_test": 1, "fine_train": 1, "fine_test": 1}
    folder = make_scenes(tmp_path / "scenes", train=1, val=1, test=4, size=32, workers=1, **few)
    shards = [folder / "pairs" / "test" / "0.tar"]
    assert holds_scenes(shards)
    found = stored_scenes(shards)
    reported = captioned_scene(0, "test", 2)
    assert list(found) == [f"test-{n:06d}" for n in range(4)]
    assert found["test-000002"] == (reported.scene, reported.contents)
    pairs = [small_pairs(tmp_path / "pairs") / "val" / "0.tar"]
    assert not holds_scenes(pairs) and stored_scenes(pairs) == {}
    assert not holds_scenes([tmp_path / "scenes" / "scenes.json"])
