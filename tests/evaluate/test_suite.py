"""The suite: sets that can be scored are, the others become errors in words."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dinorankclip.data.benchmark_sets import SetLocation, find_sets
from dinorankclip.evaluate.catalogue import Average, catalogue
from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.evaluate.examples import hardest_classes, retrieval_examples
from dinorankclip.evaluate.geometry import ModalityGapScorer
from dinorankclip.evaluate.probe import ProbeScorer
from dinorankclip.evaluate.retrieval import RetrievalScorer
from dinorankclip.evaluate.scores_file import read_scores, write_scores
from dinorankclip.evaluate.suite import SuiteOptions, run_suite
from dinorankclip.evaluate.zero_shot import Shift, ZeroShotScorer
from dinorankclip.report.pictures import draw_hardest, draw_retrieval
from dinorankclip.types import UserError
from tests.set_making import NAMES, ColourModel, patch, write_captions, write_classes, write_tar


def score(*folders, model=None, **options):
    places = [place for folder in folders for place in find_sets(str(folder))]
    scorers = [RetrievalScorer(), ZeroShotScorer()]
    return run_suite(model or ColourModel(), places, scorers, EmbeddingStore(None), SuiteOptions(**options))


def values(result):
    return {name: found.value for name, found in result.scores.items()}


def test_a_model_that_knows_everything(tmp_path):
    write_classes(tmp_path / "sets" / "classes")
    write_captions(tmp_path / "sets" / "pairs")
    found = score(tmp_path / "sets")
    assert found.errors == {}
    assert values(found.sets["classes"]) == {"T@1": 1.0, "T@3": 1.0, "mean per class": 1.0}
    pairs = found.sets["pairs"]
    assert values(pairs)["i2t R@1"] == values(pairs)["t2i R@1"] == values(pairs)["mean R@1"] == 1.0
    first = pairs.scores["t2i R@1"]
    assert (first.n, first.low, first.high, first.scorer, first.version) == (8, 1.0, 1.0, "retrieval", 1)
    assert first.clusters.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] and first.chance == 0.25


def test_captions_apart_are_scores_of_their_own(tmp_path):
    write_captions(tmp_path / "pairs")
    apart = RetrievalScorer(equal_captions=False)
    found = run_suite(ColourModel(), find_sets(str(tmp_path / "pairs")), [apart], EmbeddingStore(None), SuiteOptions())
    scores = found.sets["pairs"].scores
    assert scores["i2t R@1, captions apart"].value == 1.0 and "i2t R@1" not in scores


def test_a_collapsed_model_scores_at_chance(tmp_path):
    write_classes(tmp_path / "classes", labels=(0,) * 9 + (1,))
    write_captions(tmp_path / "pairs", labels=(0, 1, 2, 3) * 5)
    found = score(tmp_path, model=ColourModel(collapsed=True))
    assert values(found.sets["classes"]) == pytest.approx({"T@1": 0.25, "T@3": 0.75, "mean per class": 0.25})
    pairs = found.sets["pairs"].scores
    assert pairs["i2t R@1"].value == pytest.approx(pairs["i2t R@1"].chance) == 1 / 20
    assert pairs["t2i R@10"].value == pytest.approx(pairs["t2i R@10"].chance) == 0.5


def test_what_cannot_be_scored_is_said_and_the_rest_is_scored(tmp_path):
    write_classes(tmp_path / "good")
    write_classes(tmp_path / "nameless")
    (tmp_path / "nameless" / "classnames.txt").unlink()
    write_classes(tmp_path / "outside", names=NAMES[:3])
    write_tar(write_classes(tmp_path / "empty") / "test" / "0.tar", [])
    for name in ("cut", "cut-between-members"):
        tar = write_classes(tmp_path / name) / "test" / "0.tar"
        data = tar.read_bytes()
        tar.write_bytes(data[: data.index(b"s006.jpg") + (600 if name == "cut" else 0)])
    tar = write_classes(tmp_path / "scratched") / "test" / "0.tar"
    data = tar.read_bytes()
    place = data.index(b"s003.jpg")
    tar.write_bytes(data[:place] + b"\x55" * 700 + data[place + 700 :])
    members = [m for n in range(4) for m in ((f"s{n}.jpg", patch(n)), (f"s{n}.cls", str(n).encode()))]
    write_tar(write_classes(tmp_path / "rotten") / "test" / "0.tar", [*members[:2], ("s1.jpg", b"?"), *members[3:]])
    found = score(tmp_path)
    assert list(found.sets) == ["good"]
    for name, text in {
        "nameless": "has no classnames.txt",
        "outside": "class indices are out of range",
        "empty": "no images in",
        "cut": "0.tar was cut off",
        "cut-between-members": "0.tar was cut off",
        "scratched": "1 corrupt",
        "rotten": "1 of 4 samples of rotten/test are damaged",
    }.items():
        assert text in found.errors[name], found.errors[name]
    allowed = score(tmp_path / "rotten", max_damaged=0.25)
    assert allowed.sets["rotten"].images == 3 and values(allowed.sets["rotten"])["T@1"] == 1.0


def test_metrics_splits_and_doubles(tmp_path):
    write_classes(write_classes(tmp_path / "a" / "x"), split="val", labels=(0, 1))
    assert score(tmp_path / "a", metrics=("retrieval",)).sets["x"].scores == {}
    val = score(tmp_path / "a", split="val").sets["x"]
    assert val.images == 2 and val.name == "x val"
    assert "has no train part" in score(tmp_path / "a", split="train").errors["x"]
    write_classes(tmp_path / "b" / "x")
    with pytest.raises(UserError, match="two sets are called x"):
        score(tmp_path / "a", tmp_path / "b")


def test_renditions_that_the_user_names(tmp_path):
    write_classes(tmp_path / "photo")
    write_classes(tmp_path / "drawing")
    write_classes(tmp_path / "fish", names=("cod", "eel", "ray", "tuna"), templates=("a cat with a {c}",))
    named = score(tmp_path, shifts=(Shift("photo", ("drawing",)),))
    assert values(named.sets["shift from photo"])["drop"] == 0.0 and "shift from photo" not in score(tmp_path).sets
    wrong = score(tmp_path, shifts=(Shift("photo", ("drawing", "fish")),))
    assert "fish has classes that photo has not" in wrong.errors["shift from photo"]


def test_a_shift_that_was_asked_for_and_is_not_there_is_said(tmp_path):
    write_classes(tmp_path / "photo")
    found = score(tmp_path, shifts=(Shift("photo", ("drawnig",)),))
    assert "drawnig, which was not scored; sets are photo" in found.errors["shift from photo"]


def test_a_fault_in_one_scorer_costs_nothing_else(tmp_path, capsys):
    class Broken(ZeroShotScorer):
        name = "broken"

        def __call__(self, seen):
            raise FloatingPointError("no digits left")

    write_classes(tmp_path / "a")
    heard = []
    places = find_sets(str(tmp_path / "a"))
    scorers = [Broken(), ZeroShotScorer()]
    found = run_suite(ColourModel(), places, scorers, EmbeddingStore(None), report=heard.append)
    assert found.errors == {"a, broken": "FloatingPointError: no digits left"}
    assert heard == [found.sets["a"]] and found.sets["a"].scores["T@1"].value == 1.0
    assert "Traceback" in capsys.readouterr().err


def test_sets_have_one_name_whatever_their_folder_was_published_as(tmp_path):
    listed = catalogue().sets["imagenet1k"]
    published = next(name for name in listed.folder_names if name != "imagenet1k")
    assert catalogue().name_of(published) == "imagenet1k" and catalogue().name_of("mine") == "mine"
    base = write_classes(tmp_path / published, labels=(0, 1))
    found = score(base, shifts=(Shift(published, ("drawing",)),))
    assert any("has 4 classes" in note for note in found.sets["imagenet1k"].notes)
    assert "drawing, which" in found.errors["shift from imagenet1k"]


def test_a_probe_of_nothing_knows_the_largest_class(tmp_path):
    write_classes(tmp_path / "uneven", labels=(0,) * 9 + (1, 2, 3))
    write_classes(tmp_path / "uneven", split="train", labels=(0,) * 12 + (1, 2, 3) * 4)
    found = run_suite(ColourModel(collapsed=True), find_sets(str(tmp_path)), [ProbeScorer()], EmbeddingStore(None))
    scores = found.sets["uneven"].scores
    for what, chance in (("accuracy", 0.75), ("mean per class", 0.25)):
        assert scores[f"embedding probe {what}"].value == scores[f"embedding probe {what}"].chance == chance


def test_a_set_without_a_test_part_is_probed_on_its_validation_part(tmp_path):
    write_classes(tmp_path / "own", split="val", labels=(0, 1, 2, 3) * 3)
    write_classes(tmp_path / "own", split="train", labels=(0, 1, 2, 3) * 6)
    found = run_suite(ColourModel(), find_sets(str(tmp_path)), [ProbeScorer()], EmbeddingStore(None))
    assert found.errors == {} and found.sets["own"].scores["embedding probe accuracy"].value == 1.0


def test_probes_on_both_kinds_of_rows_and_their_averages(tmp_path):
    for name in ("fine", "cub100", "plain"):
        write_classes(write_classes(tmp_path / name), split="train", labels=(0, 1, 2, 3) * 6)
    (tmp_path / "fine" / "families.json").write_text(json.dumps({"pets": ["cat", "dog"], "rest": ["boat", "tree"]}))
    places = find_sets(str(tmp_path))
    model = ColourModel()
    found = run_suite(model, places, [ProbeScorer()], EmbeddingStore(None))
    assert found.errors == {}
    scores = found.sets["plain"].scores
    assert set(scores) == {f"{kind} probe {what}" for kind in ("embedding", "features")
                           for what in ("accuracy", "mean per class")}  # fmt: skip
    assert all(one.value == 1.0 for one in scores.values()) and scores["features probe accuracy"].chance == 0.25
    assert model.images_seen == 3 * (12 + 24)  # each image once, for both kinds
    assert {name: one.n for name, one in found.sets["averages"].scores.items()} == {
        "linear probe: embedding": 36, "linear probe: features": 36,
        "Fine-grained Probe: embedding": 24, "Fine-grained Probe: features": 24}  # fmt: skip
    assert found.sets["averages"].notes[1] == "Fine-grained Probe: mean of cub100, fine"
    collapsed = run_suite(ColourModel(collapsed=True), places, [ProbeScorer()], EmbeddingStore(None))
    assert collapsed.sets["fine"].scores["embedding probe accuracy"].value == 0.25
    inside = collapsed.sets["fine"].scores["embedding probe errors in family"]
    assert inside.value == pytest.approx(1 / 3) == inside.chance and inside.n == 9


def test_means_that_the_catalogue_names_need_all_their_sets(tmp_path, monkeypatch):
    for name in ("a", "b"):
        write_classes(write_classes(tmp_path / name), split="train", labels=(0, 1, 2, 3) * 6)
    averages = (
        Average("both", "T@1", ("a", "b")),
        Average("probes", "probe accuracy", ("a", "b")),
        Average("more", "T@1", ("a", "z")),
    )
    known = replace(catalogue(), averages=averages)
    monkeypatch.setattr("dinorankclip.evaluate.suite.catalogue", lambda: known)
    scorers = [ZeroShotScorer(), ProbeScorer()]
    found = run_suite(ColourModel(), find_sets(str(tmp_path)), scorers, EmbeddingStore(None)).sets
    means = {name: score.value for name, score in found["averages"].scores.items()}
    assert means["both: T@1"] == (found["a"].scores["T@1"].value + found["b"].scores["T@1"].value) / 2
    assert means["probes: embedding"] == 1.0 and means["probes: features"] == 1.0
    assert not any(name.startswith("more") for name in means)
    assert "both: mean of a, b" in found["averages"].notes


def test_a_class_that_train_lacks_costs_the_probe_and_nothing_else(tmp_path):
    write_classes(write_classes(tmp_path / "a"), split="train", labels=(0, 1, 2) * 6)
    places = find_sets(str(tmp_path / "a"))
    found = run_suite(ColourModel(), places, [ZeroShotScorer(), ProbeScorer()], EmbeddingStore(None))
    assert list(found.errors) == ["a, probe"] and "T@1" in found.sets["a"].scores


def test_scores_are_written_beside_what_train_wrote_and_read_back(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "scores.json").write_text(json.dumps({"checkpoint": "last", "scores": {"val/i2t R@1": 0.5}}))
    write_classes(tmp_path / "a")
    write_captions(tmp_path / "b")
    model = ColourModel()
    write_scores(run, model, score(tmp_path / "a"))
    write_scores(run, model, score(tmp_path / "b"))
    found = read_scores(run)
    assert found.trained["val/i2t R@1"].value == 0.5
    assert "b/t2i R@5" not in found.sets and "b/i2t R@5" in found.sets  # of four images five cannot be wrong
    entry = found.sets["b/t2i R@1"]
    assert entry.value == 1.0 and entry.version == 1 and entry.items.values.tolist() == [1.0] * 8
    assert entry.items.clusters.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert found.sets["a/mean per class"].items.weights.tolist() == pytest.approx([1 / 3] * 12)
    stored = json.loads((run / "scores.json").read_text())["sets"]["a"]
    assert stored["images"] == 12 and stored["scores"]["T@1"]["low"] == 1.0
    write_scores(run, model, score(tmp_path / "a", metrics=("retrieval",)))  # nothing for this set, and nothing lost
    assert read_scores(run).sets["a/T@1"].items.values.tolist() == [1.0] * 12
    write_classes(tmp_path / "a", labels=(0, 1))
    write_scores(run, model, score(tmp_path / "a", metrics=("retrieval",)))  # another set under the same name
    assert "a/T@1" not in read_scores(run).sets
    model.identity = "trained on"
    write_scores(run, model, score(tmp_path / "b"))
    assert {name.split("/")[0] for name in read_scores(run).sets} == {"b"}


def test_the_level_of_intervals_is_theirs_and_is_kept(tmp_path):
    write_captions(tmp_path / "pairs", labels=(0, 1, 2, 3, 0, 1, 2))
    spans = {}
    for level in (0.95, 0.5):
        options = SuiteOptions(level=level)
        places, store = find_sets(str(tmp_path / "pairs")), EmbeddingStore(None)
        found = run_suite(ColourModel(), places, [ModalityGapScorer()], store, options)
        cone = found.sets["pairs"].scores["cone separation"]
        spans[level] = cone.high - cone.low
        write_scores(tmp_path / f"{level}", ColourModel(), found)
        stored = json.loads((tmp_path / f"{level}" / "scores.json").read_text())["sets"]["pairs"]["scores"]
        assert stored["cone separation"]["level"] == level
    assert 0 < spans[0.5] < spans[0.95]


def test_pictures(tmp_path):
    write_captions(tmp_path / "pairs")
    # Images of class 1 are stored as class 0: the model is right, and the labels make it wrong.
    write_tar(
        write_classes(tmp_path / "classes") / "test" / "0.tar",
        [m for n in range(6) for m in ((f"s{n}.jpg", patch(n // 3)), (f"s{n}.cls", b"0" if n < 4 else b"1"))],
    )
    found = score(tmp_path)
    by_text, by_image = retrieval_examples(found.embedded["pairs"])
    assert len(by_text) == 6 and all(query.right[0] and query.place == 0 for query in by_text)
    assert by_text[0].images[0] == by_text[0].answer and len(by_image) == 4
    hard = hardest_classes(found.embedded["classes"])
    assert [(one.name, one.images, one.recall, one.taken_for) for one in hard] == [
        ("cat", 4, 0.75, [("dog", 0.25)]), ("dog", 2, 1.0, [])]  # fmt: skip
    assert hard[0].example == patch(1) and hard[1].example is None
    drawn = [draw_retrieval("pairs", by_text, by_image), draw_hardest("classes", hard)]
    for picture in drawn:
        assert np.asarray(picture).std() > 10 and picture.width < 1200


def test_places_are_scored_by_the_name_they_were_found_under(tmp_path):
    write_classes(tmp_path / "wds_pets")
    found = run_suite(
        ColourModel(), [SetLocation("pets", str(tmp_path / "wds_pets"), listed=True)], [], EmbeddingStore(None)
    )
    assert "OxfordPets has 37" in found.errors["pets"]


def test_a_part_of_a_listed_set_is_scored_by_its_path_with_a_note(tmp_path):
    places = find_sets(str(write_classes(tmp_path / "pets")))
    found = run_suite(ColourModel(), places, [ZeroShotScorer()], EmbeddingStore(None))
    assert found.errors == {} and found.sets["pets"].scores
    assert any("OxfordPets has 37" in note for note in found.sets["pets"].notes)
