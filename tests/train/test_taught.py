"""`--recipe taught`: without its parts it is CLIP bit for bit; each part acts; chunks, processes and resumes agree."""

import json
from contextlib import closing
from pathlib import Path

import pytest
import torch

from dinorankclip.commands.teacher import cache as cache_command
from dinorankclip.commands.train import parse, run
from dinorankclip.config import TrainSettings, as_dict
from dinorankclip.evaluate.during_training import take_fidelity
from dinorankclip.models.folder import load_folder
from dinorankclip.recipes import RECIPES
from dinorankclip.report.run_findings import examine_run
from dinorankclip.stored_settings import difference
from dinorankclip.teachers.cache_read import TeacherCache
from dinorankclip.train import checkpoints
from dinorankclip.train.assemble import assemble
from dinorankclip.train.cost import spending
from dinorankclip.train.distil_setup import FakeTeacherCache
from dinorankclip.train.step import backward
from dinorankclip.types import Progress, UserError, View
from dinorankclip_studies.study import key_of
from tests.train.running import settings_from, small_pairs
from tests.train.test_processes import largest_differences, recorded

STEPS = 4
ALL_PARTS = ("--distil.weight", "0.5", "--fusion.variant", "single-scale", "--loss.reference", "teacher")
NO_PARTS = ("--distil.weight", "0", "--anchor.weight", "0", "--fusion.variant", "none", "--loss.order", "0")
DENSE, ANCHOR = {"gram_image", "relational_image"}, {"anchor_text", "anchor_image"}
RANKING = {"rank_in", "rank_cross"}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs", train=64, val=8)


@pytest.fixture(scope="module")
def cached(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher") / "cache"
    cache_command(folder, str(pairs), "random-vit", 64, None, "gram")
    return folder


def settings_of(pairs: Path, *flags: object) -> TrainSettings:
    quick = ["--data", pairs, "--model.trunk", "drc-tiny", "--budget.batch", "16", "--budget.threads", "1"]
    return settings_from(*quick, "--budget.epochs", "1", *flags)


def taught(pairs: Path, cached: Path, *flags: object) -> TrainSettings:
    """Return settings of the recipe with all of its parts."""
    return settings_of(pairs, "--recipe", "taught", "--distil.cache", cached, *ALL_PARTS, *flags)


def test_by_default_it_is_rankclip_with_an_anchor(pairs, cached):
    anchored = (
        "--distil.into",
        "trunk",
        "--distil.tokens",
        "penultimate",
        "--distil.weight",
        "0",
        "--anchor.weight",
        "1",
    )
    runs = [assemble(settings_of(pairs, "--distil.cache", cached, *flags)) for flags in (
        ("--recipe", "taught"), ("--method", "rankclip", "--loss.list-length", "32", *anchored)
    )]  # fmt: skip
    ours, theirs = (train(parts) for parts in runs)
    assert set(ours[0].terms) == set(theirs[0].terms) >= ANCHOR
    assert [step.total for step in ours] == [step.total for step in theirs]
    weights, expected = (parts.state.model.state_dict() for parts in runs)
    assert all(torch.equal(weights[n], expected[n]) for n in expected)


def train(parts, start=0, stop=STEPS, chunk=None):
    """Take the steps from `start` to `stop`; return their terms."""
    parts.loader.step = start
    seen = []
    with closing(iter(parts.loader)) as batches:
        for step, batch in zip(range(start, stop), batches):
            progress = Progress(step, STEPS, 1)
            state = parts.state
            seen.append(backward(state.model, state.objective, batch, progress, parts.placement, chunk, True))
            state.updater.step(progress, state.model.logit_scale)
            state.step += 1
    return seen


@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_without_its_parts_it_is_clip_bit_for_bit(pairs, cached, optimiser):
    name = ("--optim.name", optimiser)
    runs = [assemble(settings) for settings in (
        taught(pairs, cached, *NO_PARTS, *name), settings_of(pairs, "--method", "clip", *name)
    )]  # fmt: skip
    ours, theirs = (train(parts) for parts in runs)
    assert [step.terms["contrastive"] for step in ours] == [step.total for step in theirs]
    assert all(not value.requires_grad for n, value in ours[-1].terms.items() if n != "contrastive")  # constants
    weights, expected = (parts.state.model.state_dict() for parts in runs)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[n], expected[n]) for n in expected)
    assert runs[0].settings.distil.cache is None  # nobody would read it


PARTS = {
    "dense": ((*NO_PARTS[2:],), DENSE),
    "anchor": ((*NO_PARTS[:2], *NO_PARTS[4:]), ANCHOR),
    "gate": ((*NO_PARTS[:4], *NO_PARTS[6:]), set()),
    "ranking": ((*NO_PARTS[:6],), RANKING),
    "all": ((), DENSE | ANCHOR | RANKING),
}


@pytest.mark.parametrize("part", PARTS)
def test_each_part_acts_and_leaves_the_start_alone(pairs, cached, part):
    flags, terms = PARTS[part]
    parts, plain = assemble(taught(pairs, cached, *flags)), assemble(settings_of(pairs))
    start, plain_start = parts.state.model.state_dict(), plain.state.model.state_dict()
    assert all(torch.equal(start[n], plain_start[n]) for n in plain_start)
    seen, of_clip = train(parts), train(plain)
    assert set(seen[0].terms) - {"contrastive"} - RANKING == terms - RANKING
    assert torch.equal(seen[0].terms["contrastive"], of_clip[0].total)  # every part starts at CLIP's embeddings
    assert not torch.equal(seen[-1].terms["contrastive"], of_clip[-1].total)
    model = parts.state.model
    assert (model.image_fusion is not None) == (part in ("gate", "all"))
    assert all(p.grad is None for p in model.parameters()) and model.image_student is None


def test_what_belongs_to_the_objective_is_in_no_model_folder(pairs, cached, tmp_path):
    parts = assemble(taught(pairs, cached))
    names = set(dict(parts.state.objective.named_parameters()))
    assert names == {"distillation.norms.image.weight", "distillation.norms.image.bias", "anchor.projection.weight"}
    train(parts)
    assert -1 <= take_fidelity(parts)["image cosine"] <= 1
    checkpoints.save(parts.state, tmp_path, keep=1)
    model = load_folder(tmp_path)
    assert {n.split(".")[0] for n in model.state_dict()} == {"trunk", "image_fusion", "text_fusion"}
    assert model.learners == {} and model.fusion.source == "trunk"


@pytest.mark.parametrize("branches", ["image", "image+text"])
def test_chunks_do_not_change_the_gradient(pairs, tmp_path, cached, branches):
    cache = cached
    if branches != "image":
        cache = tmp_path / "cache"
        cache_command(cache, str(pairs), "random-vit", 64, "random-text", "gram")
    gradients = []
    for chunk in (None, 5):
        parts = assemble(taught(pairs, cache, "--distil.branches", branches))
        train(parts, 0, 1)  # the fusion leaves its start, where nothing would be compared
        with closing(iter(parts.loader)) as batches:
            now = Progress(2, STEPS, 1)
            backward(parts.state.model, parts.state.objective, next(batches), now, parts.placement, chunk)
        modules = (parts.state.model, parts.state.objective)
        gradients.append({n: p.grad for m in modules for n, p in m.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and "anchor.projection.weight" in gradients[0]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=2e-6, rtol=1e-4)


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(pairs, cached, tmp_path):
    whole = assemble(taught(pairs, cached))
    train(whole)
    half = assemble(taught(pairs, cached))
    train(half, 0, 2)
    checkpoints.save(half.state, tmp_path, keep=1)
    other = assemble(taught(pairs, cached))
    with torch.no_grad():
        other.state.objective.anchor.mean.zero_()  # the checkpoint brings it back
    other.state.read(checkpoints.newest(tmp_path))
    train(other, 2)
    for ours, theirs in ((other.state.model, whole.state.model), (other.state.objective, whole.state.objective)):
        one, two = ours.state_dict(), theirs.state_dict()
        assert one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)


@pytest.mark.long
def test_two_processes_equal_one(pairs, cached, tmp_path):
    recipe = RECIPES["taught"].changes(TrainSettings())
    recipe = {**recipe, "distil.weight": 0.5, "fusion.variant": "single-scale", "loss.reference": "teacher"}
    changes = {name.replace(".", "__"): value for name, value in recipe.items()} | {"distil__cache": str(cached)}
    one = recorded(pairs, tmp_path / "one", 1, "dinorankclip", **changes)
    two = recorded(pairs, tmp_path / "two", 2, "dinorankclip", **changes, budget__chunk=3)
    losses, gradients = largest_differences(one, two)
    assert losses < 1e-4 and gradients < 1e-4, (losses, gradients)


def test_shuffled_features_are_those_of_other_images(pairs, cached):
    source = assemble(settings_of(pairs)).train
    keys = [source.key(index) for index in range(len(source))]
    views, caches = [View()] * len(keys), [TeacherCache(cached, "train") for _ in range(3)]
    caches[1].shuffle(0)
    caches[2].shuffle(1)
    own, other, another = (cache.images(keys, views)["image_summary"] for cache in caches)
    assert torch.equal(own.sort(0).values, other.sort(0).values)  # a permutation
    assert not (own == other).all(1).any() and not torch.equal(other, another)
    again = TeacherCache(cached, "train")
    again.shuffle(0)
    assert torch.equal(again.images(keys, views)["image_summary"], other)
    seen = [train(assemble(taught(pairs, cached, *flags)), 0, 1)[0] for flags in ((), ("--distil.shuffled",))]
    assert torch.equal(seen[0].terms["contrastive"], seen[1].terms["contrastive"])
    assert not torch.equal(seen[0].terms["anchor_text"], seen[1].terms["anchor_text"])


def test_a_dry_run_has_features_of_the_same_shapes(pairs, cached):
    settings = taught(pairs, cached)
    fake = FakeTeacherCache(settings.distil, None)
    assert fake.summaries(["a", "b"]).shape == (2, fake.summary_width)
    quick = ["--data", str(pairs), "--budget.batch", "16", "--budget.epochs", "1"]
    run(parse([*quick, "--recipe", "taught"])[0], True, False)


def test_a_whole_run_and_its_reports(pairs, cached, tmp_path):
    where = tmp_path / "run"
    flags = ["--data", pairs, "--recipe", "taught", "--distil.cache", cached, "--budget.batch", "16", "--run", where]
    flags += ALL_PARTS
    quick = ["--budget.epochs", "1", "--budget.threads", "1", "--record.no-tensorboard", "--reading.workers", "0"]
    run(parse([str(word) for word in (*flags, *quick)])[0], False, False)
    assert spending(where).method == (
        "dinorankclip, order 1, fusion single-scale of the trunk's tokens, "
        "distilled into the trunk by gram+rel, anchored"
    )
    assert any(finding.what for finding in examine_run(where))
    assert json.loads((where / "config.json").read_text())["anchor"]["weight"] == 1


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--method", "clip", "--anchor.weight", "1"], r"add --distil\.cache auto"),
        (["--method", "clip", "--distil.tokens", "penultimate"], r"add --distil\.into trunk"),
        (["--recipe", "taught", *ALL_PARTS, "--distil.tokens", "last"], r"add --distil\.tokens penultimate"),
        (["--recipe", "taught", *ALL_PARTS, "--fusion.source", "student"], r"--fusion\.source trunk"),
        (["--recipe", "taught", "--distil.shuffled", "--distil.branches", "image+text"], "of images alone"),
        (["--method", "dinorankclip", "--fusion.source", "trunk"], r"add --distil\.into trunk"),
        (["--method", "distil", "--distil.cache", "auto", "--loss.decorrelation", "1"], "embeds no pairs"),
        (["--recipe", "aligned", "--anchor.weight", "1"], "are the teacher already"),
        (["--recipe", "taught", "--method", "clip"], "is for --method dinorankclip"),
        (["--method", "clip", "--anchor.weight", "-1"], "0 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(flags, why):
    with pytest.raises(UserError, match=why):
        settings_from(*flags)


def test_settings_that_do_not_act_make_no_difference():
    plain = settings_from("--method", "clip")
    idle = settings_from("--method", "clip", "--anchor.image-weight", "0.3", "--fusion.branches", "image")
    assert difference(as_dict(plain), as_dict(idle)) == [] and key_of(plain) == key_of(idle)
    old = as_dict(plain)
    del old["anchor"], old["fusion"]["source"], old["distil"]["tokens"], old["loss"]["decorrelation"]
    assert difference(old, as_dict(plain)) == []
    acting = settings_from("--method", "clip", "--loss.decorrelation", "1")
    assert difference(old, as_dict(acting)) == ["loss.decorrelation: 0.0 → 1.0"]
