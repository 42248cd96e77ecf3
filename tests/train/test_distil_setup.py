"""A training run with a cached teacher: it acts, it is in no checkpoint, and switched off it leaves no trace."""

import json
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from dinorankclip.commands.teacher import cache as cache_command
from dinorankclip.commands.train import parse, run
from dinorankclip.config import DistilSettings, TrainSettings, as_dict
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.evaluate.during_training import take_fidelity
from dinorankclip.io import one_at_a_time
from dinorankclip.models.folder import load_folder
from dinorankclip.stored_settings import difference
from dinorankclip.teachers import cache_request, registry
from dinorankclip.teachers.cache_read import half_as_fine
from dinorankclip.teachers.cache_request import AUTOMATIC, CacheSpec, automatic_folder
from dinorankclip.teachers.weights_files import hash_of
from dinorankclip.train import checkpoints, distil_setup
from dinorankclip.train.assemble import assemble
from dinorankclip.train.distil_setup import WORDS, FakeTeacherCache
from dinorankclip.train.step import backward
from dinorankclip.types import Progress, UserError, View
from tests.train.running import settings_from, small_pairs

STEPS = 3
NOW = Progress(0, STEPS, 1)
TEACHER, TEXT_TEACHER, SIZE = "random-vit", "random-text", 64


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs", train=48, val=8)


@pytest.fixture(scope="module")
def cached(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher") / "cache"
    cache_command(folder, str(pairs), TEACHER, SIZE, TEXT_TEACHER, "both")
    return folder


def trained(pairs, *flags):
    quick = ["--data", pairs, "--model.trunk", "drc-tiny", "--budget.batch", "16", "--budget.threads", "1"]
    quick += ["--budget.epochs", "1", "--reading.crop-scale", "0.5", "1.0", "--reading.flip"]
    settings = settings_from(*quick, *flags)
    parts = assemble(settings)
    start = {n: p.detach().clone() for n, p in parts.state.model.named_parameters()}
    seen = []
    with closing(iter(parts.loader)) as batches:
        for step, batch in zip(range(STEPS), batches):
            progress = Progress(step, STEPS, 1)
            seen.append(
                backward(parts.state.model, parts.state.objective, batch, progress, parts.placement, None, True)
            )
            parts.state.updater.step(progress, parts.state.model.trunk.logit_scale)
            parts.state.step += 1
    return parts, start, seen


def test_three_steps_with_both_branches(pairs, cached, tmp_path):
    parts, start, seen = trained(pairs, "--distil.cache", cached, "--distil.branches", "image+text")
    names = {"contrastive", "gram_image", "relational_image", "gram_text", "relational_text"}
    assert all(set(terms.terms) == names and terms.total.isfinite() for terms in seen)
    moved = {n for n, p in parts.state.model.named_parameters() if not torch.equal(p, start[n])}
    assert any(n.startswith("image_student") for n in moved) and any(n.startswith("text_student") for n in moved)
    checkpoints.save(parts.state, tmp_path, keep=1)
    model = load_folder(tmp_path)
    assert model.students.image == model.students.text == "vit-micro"
    parameters = sum(p.numel() for p in model.parameters())
    assert {n.split(".")[0] for n in model.state_dict()} == {"trunk", "image_student", "text_student"}
    assert parameters == sum(p.numel() for p in parts.state.model.parameters())
    scores = take_fidelity(parts)
    assert scores["image gram distance"] > 0 and -1 <= scores["text cosine"] <= 1


def test_the_teachers_stay_what_they_are_while_their_features_are_cached(pairs, tmp_path, monkeypatch):
    opened = []

    def keeping(open_it):
        def open_and_keep(*spec):
            teacher = open_it(*spec)
            opened.append((teacher._network, hash_of(teacher._network.state_dict())))
            return teacher

        return open_and_keep

    monkeypatch.setattr(cache_request, "open_teacher", keeping(registry.open_teacher))
    monkeypatch.setattr(cache_request, "open_text_teacher", keeping(registry.open_text_teacher))
    cache_command(tmp_path / "cache", str(pairs), TEACHER, SIZE, TEXT_TEACHER)
    assert len(opened) == 2
    for network, before in opened:
        assert hash_of(network.state_dict()) == before and not network.training
        assert not any(p.requires_grad or p.grad is not None for p in network.parameters())


def test_students_alone_leave_the_trunk_alone(pairs, cached):
    flags = ["--distil.cache", cached, "--method", "distil", "--distil.branches", "image+text"]
    parts, start, _ = trained(pairs, *flags)
    model, state = parts.state.model, parts.state.updater.optimizers[0].state
    moved = {name.split(".")[0] for name, p in model.named_parameters() if not torch.equal(p, start[name])}
    assert moved == {"image_student", "text_student"}
    table = model.trunk.towers.token_embedding.weight  # which the text student borrows
    assert table.grad is None and state.get(table, {}) == {}


def test_switched_off_nothing_changes(pairs, cached):
    plain, start, _ = trained(pairs)
    unused = ["--distil.criterion", "mse", "--distil.weight", "9", "--distil.branches", "image+text"]
    off, _, seen = trained(pairs, *unused)
    assert set(seen[0].terms) == {"contrastive"} and off.state.model.image_student is None
    one, other = plain.state.model.state_dict(), off.state.model.state_dict()
    assert one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)
    _, with_students, _ = trained(pairs, "--distil.cache", cached)
    assert all(torch.equal(with_students[n], start[n]) for n in start)  # the trunk starts alike
    assert difference(as_dict(plain.settings), as_dict(off.settings)) == []
    old = as_dict(TrainSettings())
    del old["distil"]  # a run of a version without distillation goes on
    assert difference(old, as_dict(TrainSettings())) == []


def test_a_cache_that_does_not_fit_stops_a_run(pairs, cached, tmp_path):
    other = small_pairs(tmp_path / "other", train=32, val=4)
    with pytest.raises(UserError, match="made of other data"):
        trained(other, "--distil.cache", cached)
    with pytest.raises(UserError, match="is no teacher cache"):
        trained(pairs, "--distil.cache", tmp_path)
    with pytest.raises(UserError, match=r"give --distil\.cache"):
        trained(pairs, "--method", "distil")


def test_the_trunk_can_be_taught_in_the_students_stead(pairs, cached, tmp_path):
    flags = ["--method", "rank", "--distil.cache", cached, "--distil.branches", "image+text"]
    parts, start, seen = trained(pairs, *flags, "--distil.into", "trunk")
    terms = {"gram_image", "relational_image", "gram_text", "relational_text"}
    assert all(terms < set(step.terms) and step.total.isfinite() for step in seen)
    assert seen[0].report["gram_distance_image"] > 0
    model = parts.state.model
    assert model.students.image is None and model.students.text is None and set(model.learners) == {"image", "text"}
    plain, plain_start, _ = trained(pairs, "--method", "rank")
    assert start.keys() == plain_start.keys() and all(torch.equal(start[n], plain_start[n]) for n in start)
    ends = dict(plain.state.model.named_parameters())
    for tower in ("visual.transformer.resblocks.2.mlp.c_proj.weight", "transformer.resblocks.1.mlp.c_proj.weight"):
        name = f"trunk.towers.{tower}"
        assert not torch.equal(model.get_parameter(name), ends[name])  # the teacher had a say
    scores = take_fidelity(parts)
    assert scores["image gram distance"] > 0 and -1 <= scores["text cosine"] <= 1
    checkpoints.save(parts.state, tmp_path, keep=1)
    loaded = load_folder(tmp_path)  # an ordinary model, which knows of no teacher
    assert loaded.learners == {} and loaded.state_dict().keys() == plain.state.model.state_dict().keys()


@pytest.mark.parametrize("criterion", ["mse", "cosine", "rkd", "crd"])
def test_every_criterion_teaches_the_trunk(pairs, cached, criterion):
    flags = ["--distil.cache", cached, "--distil.into", "trunk", "--distil.criterion", criterion]
    _, _, seen = trained(pairs, *flags)
    term = "relational" if criterion == "rkd" else criterion
    assert set(seen[0].terms) == {"contrastive", f"{term}_image"} and seen[-1].total.isfinite()


def test_chunks_do_not_change_what_the_trunk_learns(pairs, cached):
    flags = ["--distil.cache", cached, "--distil.branches", "image+text", "--distil.into", "trunk"]
    settings = settings_from("--data", pairs, "--budget.batch", "16", *flags)
    gradients = []
    for chunk in (None, 5):
        parts = assemble(settings)
        with closing(iter(parts.loader)) as batches:
            backward(parts.state.model, parts.state.objective, next(batches), NOW, parts.placement, chunk)
        gradients.append({n: p.grad for n, p in parts.state.model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-4)


def test_teaching_the_trunk_refuses_what_makes_no_sense(pairs, cached, tmp_path):
    into = ["--distil.into", "trunk", "--distil.cache", str(cached)]
    for flags, why in (
        (["--method", "dinorankclip", *into], r"add --fusion\.variant none"),
        (["--method", "distil", *into], "leaves the trunk alone"),
        (["--distil.into", "trunk"], r"give --distil\.cache auto"),
        (["--model.frozen-image-tower", "--init", "some-run", *into], "could not learn, and a teacher needs pixels"),
    ):
        with pytest.raises(UserError, match=why):
            run(parse(["--data", str(pairs), "--run", str(tmp_path / "run"), *flags])[0], False, False)
    assert not (tmp_path / "run").exists()


def test_distil_only_runs_refuse_a_fusion_that_would_stay_untrained(pairs, cached, tmp_path):
    flags = ["--data", str(pairs), "--method", "distil", "--distil.cache", str(cached), "--fusion.variant", "full"]
    with pytest.raises(UserError, match="trains students alone"):
        run(parse([*flags, "--run", str(tmp_path / "run")])[0], False, False)


def test_a_cache_without_held_out_parts_costs_the_fidelity_alone(pairs, tmp_path, capsys):
    cache_command(tmp_path / "cache", str(pairs), TEACHER, SIZE, TEXT_TEACHER, split=("train",))
    flags = ["--data", pairs, "--run", tmp_path / "run", "--distil.cache", tmp_path / "cache", "--budget.epochs", "1"]
    settings, *_ = parse([str(word) for word in [*flags, "--budget.batch", "16", "--budget.threads", "1"]])
    assert run(settings, False, False)
    assert "was not measured" in capsys.readouterr().out
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert "val/mean R@1" in scores["scores"] and "fidelity" not in scores
    assert scores["held_out"].keys() == {"val", "test"}


def test_of_runs_started_together_one_makes_the_cache(pairs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked, *_ = parse(["--data", str(pairs), "--distil.cache", "auto", "--distil.teacher", TEACHER])
    looks = iter([False, True])  # it was finished while this run waited
    monkeypatch.setattr(distil_setup, "is_complete", lambda folder: next(looks))
    monkeypatch.setattr(distil_setup, "cache_of_data", lambda *_: pytest.fail("made twice"))
    distil_setup.make_missing_cache(asked, torch.device("cpu"))
    assert next(looks, "looked twice") == "looked twice"


def test_a_run_waits_while_another_makes_the_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    other = one_at_a_time("cache", AUTOMATIC)
    other.__enter__()
    looks = []

    def look(_):
        looks.append(1)
        if len(looks) == 3:
            other.__exit__(None, None, None)

    monkeypatch.setattr(distil_setup.time, "sleep", look)
    with distil_setup._alone(AUTOMATIC / "cache"):
        assert len(looks) == 3
    assert capsys.readouterr().out == "another run is building this cache; waiting\n"


def test_the_dry_run_compares_on_the_grid_that_training_does():
    settings = DistilSettings(cache="auto", teacher="efficientnet-lite0", teacher_size=224)
    assert FakeTeacherCache(settings, None).compare_grid == (half_as_fine(7),) * 2 == (4, 4)


@pytest.mark.parametrize("criterion", ["gram+rel", "mse", "rkd"])
def test_the_dry_run_stands_in_for_the_teacher_that_was_asked_for(cached, criterion):
    asked = DistilSettings("auto", TEACHER, TEXT_TEACHER, SIZE, criterion)
    stand_in = FakeTeacherCache(asked, Tokenizer())
    real = distil_setup.cache_part(replace(asked, cache=str(cached)), "train", Tokenizer())
    for name in ("grid", "compare_grid", "width", "summary_width", "fields"):
        assert getattr(stand_in, name) == getattr(real, name), name
    assert stand_in.plan["text"].items() <= real.plan["text"].items()
    assert stand_in.network == TEACHER


def test_features_of_a_stand_in_have_its_teachers_shapes():
    given = {}
    for criterion in ("gram+rel", "mse"):
        asked = DistilSettings("auto", TEACHER, TEXT_TEACHER, SIZE, criterion)
        given |= FakeTeacherCache(asked, Tokenizer())(["a", "b"], [View(), View()], ["a red cat", "two dogs"])
    for name, shape in (
        ("image_gram", (2, 4, 4)),  # of the 4×4 tokens that 64 pixels make half as fine
        ("image_tokens", (2, 4, 192)),
        ("image_summary", (2, 192)),
        ("text_tokens", (2, WORDS, 192)),
        ("text_summary", (2, 192)),
    ):
        assert given[name].shape == shape, name


def test_a_dry_run_with_an_unknown_teacher_is_refused():
    with pytest.raises(UserError, match="'random-vti' is no image teacher"):
        FakeTeacherCache(DistilSettings(cache="auto", teacher="random-vti"), None)


def test_a_run_folder_of_other_settings_is_refused_before_anything_is_cached(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(distil_setup, "cache_of_data", lambda *_: pytest.fail("cached first"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "strange").write_text("not a run")
    flags = ["--data", str(pairs), "--run", str(tmp_path / "run"), "--method", "dinorankclip"]
    with pytest.raises(UserError, match="not a run folder"):
        run(parse([*flags, "--distil.teacher", TEACHER])[0], False, False)


def test_a_few_training_images_use_the_cache_of_all(pairs, cached):
    few, _, seen = trained(pairs, "--distil.cache", cached, "--reading.train-items", "20")
    whole, *_ = trained(pairs, "--distil.cache", cached)
    assert len(few.train) == 20 and few.length == whole.length and seen[-1].total.isfinite()
    assert few.state.data_fingerprint != whole.state.data_fingerprint
    wish = CacheSpec(str(pairs), TEACHER, SIZE, TEXT_TEACHER)
    assert automatic_folder(wish, few.settings.reading) == automatic_folder(wish, whole.settings.reading)
    scores = take_fidelity(few)
    assert scores["image gram distance"] > 0
