"""Fine-tuning trained weights: defaults by the start, layer decay, blend, early stop, heads first, replay."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dinorankclip
from dinorankclip import given_settings
from dinorankclip.commands.train import run as dry_run
from dinorankclip.config import OptimSettings, as_dict, with_changes
from dinorankclip.data.benchmark_sets import find_sets, open_set
from dinorankclip.data.replay import joined
from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.evaluate.gains import general_set, items_of, mean_recall, parts_of, set_scores
from dinorankclip.evaluate.scores import mean_score
from dinorankclip.finetuning import LARGEST_RATE, Start, reasons, start_of, warnings
from dinorankclip.models.folder import find_model, load_folder
from dinorankclip.models.joint import JointModel
from dinorankclip.models.loaded import load_model
from dinorankclip.presets import default_settings
from dinorankclip.run_files import taught_by
from dinorankclip.stored_settings import as_begun, difference
from dinorankclip.train.assemble import assemble
from dinorankclip.train.checkpoints import _from_weights, train_command
from dinorankclip.train.step import layer_factors, optimisers
from dinorankclip.types import UserError
from tests.train.running import command, run_to_end, settings_from, small_pairs
from tests.train.test_frozen import SMALL, model_folder

QUICK = {
    "preset": "finetune", "budget.batch": 16, "budget.epochs": 2, "budget.threads": 1, "reading.workers": 0,
    "record.tensorboard": False, "record.save_every": 2, "optim.lr": 1e-3,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("here"))
        yield


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("own") / "pairs", train=48, val=12)


@pytest.fixture(scope="module")
def general(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("general") / "others", train=32, val=16)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("start"), seed=3)


def tuned(pairs, start, run, **changes):
    return dinorankclip.train(**QUICK | {"data": str(pairs), "init": str(start), "run": str(run)} | changes)


def test_a_sigmoid_loss_begins_with_a_temperature_that_learns(start):
    assert settings_from("--preset", "finetune", "--init", start, "--method", "siglip").optim.freeze == ()
    assert settings_from("--preset", "finetune", "--init", start).optim.freeze == ("*logit_scale",)


def test_the_rate_follows_the_size_of_the_start(start, tmp_path):
    assert Start("x", 151e6).rate == Start("x", None).rate == 1e-5
    assert Start("x", 428e6).rate == pytest.approx(6e-6)
    assert Start("x", 7.5e6).rate == 4e-5 and Start("x", 1e3).rate == LARGEST_RATE
    found = start_of(str(start), None)
    tensors = sum(t.numel() for t in JointModel(SMALL).state_dict().values())
    assert found.parameters == pytest.approx(tensors, rel=0.02)
    assert start_of("open_clip:ViT-B-32:random", None) is None and start_of(None, None) is None


def test_defaults_depend_on_the_start_alone_with_this_preset(start):
    scratch, trained = settings_from("--preset", "finetune"), settings_from("--preset", "finetune", "--init", start)
    assert scratch.optim == default_settings("finetune").optim and scratch.optim.lr == 1e-4 and not scratch.tune.blend
    assert trained.optim.weight_decay == 0.01 and trained.optim.layer_decay == 0.8 and trained.tune.blend
    assert settings_from("--preset", "scenes", "--init", start).optim == settings_from("--preset", "scenes").optim
    assert settings_from("--preset", "finetune", "--init", start, "--optim.lr", "3e-5").optim.lr == 3e-5
    lora = settings_from("--preset", "finetune", "--init", start, "--tune.lora-rank", "8")
    assert lora.optim.lr == pytest.approx(30 * trained.optim.lr)


def test_each_default_is_printed_with_its_reason_and_danger_is_announced(start):
    lines = list(reasons(settings_from("--preset", "finetune", "--init", start)))
    assert len([line for line in lines if line.startswith("  ")]) == 6 and not [x for x in lines if "warning" in x]
    old = ("--optim.lr", "1e-3", "--optim.weight-decay", "0.2")
    warned = [
        line for line in reasons(settings_from("--preset", "finetune", "--init", start, *old)) if "warning" in line
    ]
    assert len(warned) == 2 and "--optim.lr 0.0001" in warned[0] and "--optim.weight-decay 0.01" in warned[1]
    published = ("--init", "open_clip:ViT-B-32:openai")
    warned = list(reasons(settings_from("--preset", "finetune", *published, "--optim.lr", "1e-4")))[-1]
    assert "10 times" in warned and "--optim.lr 1e-05" in warned
    muon = list(reasons(settings_from("--preset", "scenes", *published)))
    assert "--optim.name adamw --optim.lr 1e-05" in muon[0]
    assert list(reasons(settings_from("--preset", "scenes"))) == []


def test_layer_decay_counts_the_blocks_above():
    model = JointModel(SMALL)
    named = {f"model.{name}": p for name, p in model.named_parameters()}
    factors = layer_factors(named, 0.5)
    towers = "model.trunk.towers."
    assert factors[f"{towers}visual.transformer.resblocks.1.mlp.c_fc.weight"] == 1
    assert factors[f"{towers}visual.transformer.resblocks.0.ln_1.bias"] == 0.5
    assert factors[f"{towers}visual.conv1.weight"] == factors[f"{towers}token_embedding.weight"] == 0.25
    assert factors[f"{towers}positional_embedding"] == 0.25 and f"{towers}visual.proj" not in factors
    assert layer_factors(named, 1.0) == {}
    for name in ("adamw", "muon"):
        groups = [g for o in optimisers(named, OptimSettings(name=name, layer_decay=0.5)) for g in o.param_groups]
        assert sorted(n for g in groups for n in g["names"]) == sorted(named)
    plain = [g for o in optimisers(named, OptimSettings(name="muon")) for g in o.param_groups]
    assert len([g for g in plain if "momentum" in g]) == 1


def test_a_fine_tuned_run_compares_itself_with_its_start(pairs, start, general, tmp_path, capsys):
    run = tuned(pairs, start, tmp_path / "run", **{"tune.general": str(general), "tune.floor": 1.0})
    stored = json.loads((run.folder / "scores.json").read_text())
    of = {(row["of"], row["part"]) for row in stored["gains"]}
    assert of == {("own", "val"), ("own", "test"), ("general", "test")}
    for row in stored["gains"]:
        assert row["low"] <= row["after"] - row["before"] <= row["high"] and row["n"] in (12, 16, 24, 32)
    text = capsys.readouterr().out
    assert "optim.weight_decay = 0.01: decay pulls" in text and "general test" in text and "before and after" in text
    report = run.report.read_text()
    assert "95 % interval over images" in report and "general test" in report
    # A floor of 1 allows everything: the blend is chosen by validation alone.
    assert 0 <= stored["chosen"]["alpha"] <= 1
    assert find_model(run.folder).name == "chosen" and load_model(run.folder, device="cpu")


def test_the_blend_is_the_mixture_of_both_ends(pairs, start, general, tmp_path):
    run = tuned(pairs, start, tmp_path / "run", **{"tune.general": str(general), "tune.floor": 1.0})
    alpha = json.loads((run.folder / "scores.json").read_text())["chosen"]["alpha"]
    begin, end, mixed = (
        load_folder(place).state_dict() for place in (start, run.folder / "checkpoints/step-6", run.folder)
    )
    for name, tensor in mixed.items():
        torch.testing.assert_close(tensor, torch.lerp(begin[name], end[name], alpha), rtol=0, atol=1e-6)
    again = tuned(pairs, start, run.folder, **{"tune.general": str(general), "tune.floor": 1.0})
    assert again.finished and find_model(run.folder).name == "chosen"


def test_a_mixture_that_may_lose_more_than_the_floor_is_not_taken(pairs, start, general, tmp_path, capsys):
    """At this rate the general set changes, and its 16 images cannot show that no mixture loses 0.1 points."""
    run = tuned(pairs, start, tmp_path / "run", **{"tune.general": str(general), "tune.floor": 0.001, "optim.lr": 1e-2})
    assert json.loads((run.folder / "scores.json").read_text())["chosen"]["alpha"] == 0
    text = capsys.readouterr().out
    assert "not even 10 % of the way stays within 0.1 points" in text and "by the interval over 16 images" in text
    assert "has 16 images that choose the blend" in text and "at least 3,000" in text  # 3 / 0.001
    begin, mixed = (load_folder(place).state_dict() for place in (start, run.folder))
    assert all(torch.equal(mixed[name], tensor) for name, tensor in begin.items())


def test_items_average_to_the_number_that_is_watched():
    """Two captions to an image: an image's recall is the mean of its captions' and of its own."""
    draws = np.random.default_rng(3)
    scores = {}
    for way, count, clusters in (("i2t", 6, None), ("t2i", 12, np.repeat(np.arange(6), 2))):
        for k in (1, 5, 10):
            scores[f"{way} R@{k}"] = mean_score(f"{way} R@{k}", draws.integers(0, 2, count), clusters)
    items = items_of(scores)
    assert items.clusters is None and items.values.shape == (6,)
    assert items.values.mean() == pytest.approx(mean_recall(scores), abs=1e-12)
    of_third = [scores["i2t R@1"].items[2], *scores["t2i R@1"].items[4:6]]
    only = items_of({name: score for name, score in scores.items() if name.endswith("R@1")})
    assert only.values[2] == pytest.approx(of_third[0] / 2 + (of_third[1] + of_third[2]) / 4, abs=1e-12)
    uneven = np.array([0, 0, 0, 1, 2, 2, 3, 4, 4, 5, 5, 5])  # 1 to 3 captions: every caption counts once
    scores |= {f"t2i R@{k}": mean_score(f"t2i R@{k}", scores[f"t2i R@{k}"].items, uneven) for k in (1, 5, 10)}
    assert items_of(scores).values.mean() == pytest.approx(mean_recall(scores), abs=1e-12)
    together = np.array([0, 1, 1, 2, 0, 3])  # images 0 and 4, and 1 and 2, have the same captions
    scores |= {f"i2t R@{k}": mean_score(f"i2t R@{k}", scores[f"i2t R@{k}"].items, together) for k in (1, 5, 10)}
    scores |= {f"t2i R@{k}": mean_score(f"t2i R@{k}", scores[f"t2i R@{k}"].items, together[uneven]) for k in (1, 5, 10)}
    items = items_of(scores)
    assert items.values.shape == (4,) and items.images == 6
    assert items.values.mean() == pytest.approx(mean_recall(scores), abs=1e-12)
    accuracy = items_of({"T@1": mean_score("T@1", np.array([0.0, 1.0]), weights=np.array([1.0, 3.0]))})
    assert accuracy.weights is not None and np.average(accuracy.values, weights=accuracy.weights) == 0.75


def test_images_with_the_same_captions_are_drawn_together(tmp_path, start):
    table = tmp_path / "names.csv"
    draws = np.random.default_rng(0)
    rows = ["image,caption"]
    for place in range(80):
        Image.fromarray(draws.integers(0, 255, (32, 32, 3), np.uint8)).save(tmp_path / f"{place}.png")
        rows.append(f"{place}.png,a photo of a {('dog', 'cat', 'cow')[place % 3]}")
    table.write_text("\n".join(rows))
    location = find_sets(str(table))[0]
    scores = set_scores(load_model(start, device="cpu"), location, parts_of(location)[1], EmbeddingStore(None))
    held = scores["t2i R@1"]
    assert len(set(held.clusters.tolist())) == 3 and items_of(scores).values.shape == (3,)


def test_without_a_general_set_it_says_which_to_give(pairs, start, tmp_path, capsys):
    run = tuned(pairs, start, tmp_path / "run")
    assert "no general set is known" in capsys.readouterr().out and find_model(run.folder).name == "step-6"


def test_lora_resumes_bit_for_bit_and_is_saved_as_a_plain_model(pairs, start, tmp_path):
    lora = {"tune.lora_rank": 4, "tune.blend": False, "tune.general": "none"}
    whole = tuned(pairs, start, tmp_path / "whole", **lora)
    stop = lambda event: event.step < 3  # noqa: E731
    for _ in range(2):
        cut = tuned(
            pairs, start, tmp_path / "cut", callbacks=[stop] if _ == 0 else [], **lora | {"record.log_every": 1}
        )
    assert cut.finished
    a, b = (load_folder(run.folder).state_dict() for run in (whole, cut))
    assert all(torch.equal(a[name], b[name]) for name in a)
    begin = load_folder(start).state_dict()
    moved = {name for name in a if not torch.equal(a[name], begin[name])}
    assert moved and all("resblocks" in name and name.endswith("weight") for name in moved)
    chunked = tuned(pairs, start, tmp_path / "chunked", **lora | {"budget.chunk": 4})
    c = load_folder(chunked.folder).state_dict()
    assert max((a[name] - c[name]).abs().max() for name in a if a[name].is_floating_point()) < 1e-4


def test_lora_notices_another_start(pairs, start, tmp_path):
    other = tmp_path / "start"
    other.mkdir()
    lora = {"tune.lora_rank": 4, "tune.blend": False, "tune.general": "none"}
    model_folder(other, seed=3)
    run = tuned(pairs, other, tmp_path / "run", **lora)
    model_folder(other, seed=4)
    with pytest.raises(UserError, match="not as it was when this run began"):
        tuned(pairs, other, run.folder, **lora)


def test_early_stopping_ends_with_the_best_and_stays_ended(pairs, start, tmp_path):
    early = {"tune.patience": 1, "tune.blend": False, "tune.general": "none", "budget.epochs": 30, "optim.lr": 1e-9}
    run = tuned(pairs, start, tmp_path / "run", **early)
    stored = json.loads((run.folder / "scores.json").read_text())
    assert stored["step"] == 6 and stored["chosen"] == {"checkpoint": "step-3"}
    again = tuned(pairs, start, run.folder, **early)
    assert again.finished and json.loads((run.folder / "scores.json").read_text())["step"] == 6


def test_heads_first_move_the_projections_alone(pairs, start, tmp_path, capsys):
    heads = {"tune.head_epochs": 8, "tune.blend": False, "tune.general": "none", "optim.lr": 1e-12}
    run = tuned(pairs, start, tmp_path / "run", **heads)
    assert "projections first: loss" in capsys.readouterr().out
    begin, end = load_folder(start).state_dict(), load_folder(run.folder).state_dict()
    moved = {name for name in begin if (begin[name] - end[name]).abs().max() > 1e-5}
    assert moved == {"trunk.towers.visual.proj", "trunk.towers.text_projection"}


def test_heads_and_early_stopping_are_the_same_on_two_processes(pairs, start, tmp_path):
    """The leader alone validates; heads learn from all pairs on every process."""
    flags = ("--init", str(start), "--tune.head-epochs", "2", "--tune.patience", "1", "--optim.lr", "1e-9")
    ends = []
    for processes in (1, 2):
        run = tmp_path / f"run{processes}"
        run_to_end(command(pairs, run, *flags, "--reading.workers", "0", processes=processes))
        assert json.loads((run / "scores.json").read_text())["step"] == 6
        ends.append(load_folder(run).state_dict())
    assert max((ends[0][name] - ends[1][name]).abs().max() for name in ends[0] if "proj" in name) < 1e-5


def test_replay_fills_a_share_of_each_batch(pairs, general, start, tmp_path):
    flags = ["--preset", "finetune", "--data", pairs, "--init", start, "--budget.batch", "16", "--reading.workers", "0"]
    parts = assemble(settings_from(*flags, "--tune.replay", general, "--tune.replay-share", "0.25"))
    batch = next(iter(parts.loader))
    assert len(batch.keys) == 16 and parts.length.steps_per_epoch == 48 // 12 and batch.groups.shape[0] == 16
    parts.loader.step = 0
    theirs = next(iter(parts.loader.other))
    assert len(theirs.keys) == 4 and batch.captions[-4:] == theirs.captions
    assert torch.equal(batch.images[-4:], theirs.images)
    run = tuned(pairs, start, tmp_path / "run", **{"tune.replay": str(general), "tune.blend": False})
    assert run.finished


def test_equal_names_in_two_sources_are_different_images(pairs):
    own = next(iter(assemble(settings_from("--data", pairs, "--reading.workers", "0", "--budget.batch", "8")).loader))
    groups = torch.tensor([[5, 7, -1, -1], [6, 8, 9, -1]])
    a, b = (replace(own, groups=groups, texts=own.texts[:2], images=own.images[:2]) for _ in range(2))
    ids = joined(a, b).groups
    assert torch.equal(ids[:2], groups) and torch.equal(ids[2:, 1], groups[:, 1])  # an equal caption stays no negative
    assert (ids[2:, 3] == -1).all() and ids[2, 2] == -1
    assert ids[2, 0] not in (5, -1) and ids[2, 0] >= 0 and ids[3, 2] not in (9, -1)
    assert ids[2, 0] != ids[3, 0]


def test_the_data_of_the_start_are_replayed_where_they_are_at_hand(pairs, general, start, tmp_path, capsys):
    """The start here is a run on `general`. Its data bring a larger rate with them, and are left out on request."""
    anew = {"preset": "scenes", "data": str(general), "run": str(tmp_path / "first"), "budget.epochs": 1}
    first = dinorankclip.train(**QUICK | anew).folder
    flags = ("--preset", "finetune", "--data", pairs, "--init", first)
    found = settings_from(*flags)
    assert (found.tune.replay, found.tune.replay_share) == ("start", 0.5)
    without = settings_from(*flags, "--tune.replay", "None")
    assert without.tune.replay is None and found.optim.lr == pytest.approx(8 * without.optim.lr, rel=0.1)
    assert not list(warnings(found, start_of(str(first), None)))
    told = list(warnings(with_changes(found, {"tune.replay": None}), start_of(str(first), None)))
    assert len(told) == 1 and "damages" in told[0]
    assert settings_from(*flags, "--model.frozen-image-tower").tune.replay is None
    other = settings_from(*flags, "--tune.replay", pairs)  # pairs that may know less than the start: its own rate
    assert other.tune.replay == str(pairs) and other.optim.lr == without.optim.lr
    for settings in (found, without, with_changes(without, {"optim.lr": found.optim.lr})):
        typed = shlex.split(train_command(as_dict(settings) | {"run": "runs/x"}))
        assert as_dict(settings_from(*typed[2:])) | {"run": "runs/x"} == as_dict(settings) | {"run": "runs/x"}
    # Its run goes on as it began, if it began before replay was a default.
    assert as_begun(found, as_dict(without)) == without
    # Replay of the own pairs is none.
    own = {"preset": "finetune", "data": str(general), "init": str(first)}
    assert settings_from("--preset", "finetune", "--data", general, "--init", first).tune.replay is None
    assert given_settings.settings_from(own).tune.replay is None
    assert settings_from(*flags, "--tune.replay", "start").tune.replay == "start"
    # Without --data the preset's own are trained on, which are not those of the start; and "none" is a word of TOML.
    assert settings_from("--preset", "finetune", "--init", first).tune.replay == "start"
    assert settings_from(*flags, "--tune.replay", "none") == without
    assert settings_from(*flags, "--distil.cache", "none") == found
    # A run of an earlier version may have replayed another share of named pairs.
    quarter = with_changes(other, {"tune.replay_share": 0.25})
    assert as_begun(other, as_dict(quarter)) == quarter
    # The same through files, the API, and flags with underscores; students know nothing of replayed pairs.
    config = tmp_path / "mine.toml"
    config.write_text(f'preset = "finetune"\ndata = "{pairs}"\ninit = "{first}"\n')
    assert settings_from("--config", config) == found
    assert settings_from("--config", config, "--tune.replay", "None") == without
    config.write_text(f'preset = "finetune"\ndata = "{pairs}"\ninit = "{first}"\ntune.replay = "none"\n')
    assert settings_from("--config", config) == without
    config.write_text(f'preset = "finetune"\ndata = "{pairs}"\ninit = "{first}"\n')
    assert settings_from("--config", config, "--model.frozen-image-tower").tune.replay is None
    low = settings_from(*flags, "--tune.lora_rank", "4")
    assert low == settings_from("--config", config, "--tune.lora-rank", "4") and low.optim.lr > 2 * found.optim.lr
    assert settings_from(*flags, "--method", "dinorankclip").tune.replay is None

    run = dinorankclip.train(**QUICK | {"data": str(pairs), "init": str(first), "run": str(tmp_path / "run")})
    assert f"replay: 8 of 16 pairs of a batch come from the data of {first}" in capsys.readouterr().out
    assert run.finished
    # A model that was fine-tuned knows what two sets hold. One of them is not enough, unless the other is `data`.
    assert settings_from("--preset", "finetune", "--data", general, "--init", run.folder).tune.replay is None
    assert taught_by(str(run.folder), str(pairs)) == first and taught_by(str(run.folder), str(general)) is None
    further = train_command(_from_weights(run.folder, run.folder, as_dict(run.settings())))
    assert "--tune.replay" not in further and settings_from(*shlex.split(further)[2:]).tune.replay == "start"
    again = settings_from("--preset", "finetune", "--data", pairs, "--init", run.folder)
    assert again.tune.replay == "start" and general_set(again).where == str(general)
    shutil.move(general, tmp_path / "away")
    try:
        assert settings_from(*flags).tune.replay is None
        with pytest.raises(UserError, match=r"replays the data of .*put them back"):
            tuned(pairs, first, run.folder)
        with pytest.raises(UserError, match="init: "):  # another start: other settings, not missing data
            tuned(pairs, start, run.folder)
        with pytest.raises(UserError, match="no run of this package"):
            tuned(pairs, start, tmp_path / "other", **{"tune.replay": "start"})
    finally:
        shutil.move(tmp_path / "away", general)


def test_parts_that_do_not_fit_are_refused(start):
    for flags, words in (
        (("--tune.blend",), "name them with --init"),
        (("--tune.lora-rank", "4"), "name them with --init"),
        (("--init", start, "--tune.replay", "x", "--method", "alip"), "knows nothing"),
        (("--init", start, "--tune.lora-rank", "4", "--method", "dinorankclip"), "must learn"),
        (("--init", start, "--model.frozen-image-tower", "--tune.head-epochs", "1"), "keeps one"),
        (("--init", start, "--tune.lora-rank", "0"), "at least 1"),
    ):
        with pytest.raises(UserError, match=words):
            settings_from("--preset", "finetune", *flags)


def test_a_run_of_an_older_version_goes_on_as_it_began(start):
    flags = ["--preset", "finetune", "--init", start]
    stored = as_dict(with_changes(default_settings("finetune"), {"init": str(start)}))
    del stored["tune"], stored["optim"]["layer_decay"]
    assert difference(stored, as_dict(settings_from(*flags))) != []
    begun = as_begun(settings_from(*flags), stored)
    assert difference(stored, as_dict(begun)) == [] and begun.optim.lr == 1e-4 and begun.optim.freeze == ()
    assert as_begun(settings_from(*flags, "--optim.lr", "3e-6"), stored).optim.lr == 3e-6


def test_a_general_set_that_is_not_there_is_refused_before_training(pairs, start, tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        tuned(pairs, start, tmp_path / "run", **{"tune.general": str(tmp_path / "nowhere")})
    assert not (tmp_path / "run" / "metrics.jsonl").exists() or not (tmp_path / "run/metrics.jsonl").read_text()
    with pytest.raises(UserError, match="nowhere"):  # before the whole cost of a run is measured, too
        dry_run(with_changes(settings_of(pairs, start), {"tune.general": str(tmp_path / "nowhere")}), False, True)


def test_the_general_set_of_a_start_on_built_in_scenes_are_its_pairs(general, start, monkeypatch):
    """The folder of the scenes holds sets of classes, too."""
    made = Path(str(general)).parent / "scenes"
    monkeypatch.setattr("dinorankclip.data.open_data.built_in_scenes", lambda: made)
    (made / "pairs").parent.mkdir(exist_ok=True)
    shutil.copytree(general, made / "pairs", dirs_exist_ok=True)
    found = general_set(with_changes(settings_of(general, start), {"tune.general": "scenes"}))
    assert found is not None and open_set(found).splits == ("train", "val", "test")
    shutil.copytree(general, made / "others", dirs_exist_ok=True)
    with pytest.raises(UserError, match=r"holds 2 sets; name one of them by --tune.general: .*others.*pairs"):
        general_set(with_changes(settings_of(general, start), {"tune.general": str(made)}))


def settings_of(pairs, start):
    return settings_from("--preset", "finetune", "--data", pairs, "--init", start, "--reading.workers", "0")
