"""Settings that make sense stay as they are; others are refused, whoever asks."""

from dataclasses import replace

import pytest

from dinorankclip.config import with_changes
from dinorankclip.methods import METHODS, TRAITS, traits_of_stored
from dinorankclip.presets import PRESETS, for_method, preset
from dinorankclip.types import UserError
from dinorankclip.validate import validated
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.run_cell import train_run
from dinorankclip_studies.run_queue import QUEUE, write_queue
from dinorankclip_studies.study import Run

SENSELESS = [
    ("rankclip", {"loss.order": 2}, "use --method rank"),
    ("rank", {"loss.order": 6}, "orders 0 to 5"),
    ("rank", {"loss.list_length": 0}, "--loss.list-length 0: it must be at least 1; leave it out"),
    ("clip", {"budget.batch": 0}, "--budget.batch 0: it must be at least 1"),
    ("clip", {"optim.clip_norm": 0.0}, "None switches it off"),
    ("clip", {"optim.lr": -1.0}, "--optim.lr -1: it must be a number above 0"),
    ("clip", {"optim.lr": float("nan")}, "--optim.lr nan"),
    ("rank", {"optim.heads_rate": 0.0}, "1 is the trunk's rate"),
    ("rank", {"optim.heads_eps": 0.0}, "--optim.heads-eps 0: it must be between 0 and 1"),
    ("rank", {"loss.head_dim": 0}, "--loss.head-dim 0: it must be at least 1"),
    ("dinorankclip", {"distil.weight": -0.5}, "--distil.weight -0.5: it must be 0 or more"),
    ("dinorankclip", {"distil.text_ratio": float("nan")}, "--distil.text-ratio nan"),
    ("dinorankclip", {"distil.relational_items": 2}, "--distil.relational-items 2: it must be 3 or more"),
    ("dinorankclip", {"distil.compare_grid": 0}, "--distil.compare-grid 0: it must be at least 1"),
    ("clip", {"optim.betas": (2.0, 3.0)}, "--optim.betas 2 3: it must be from 0 to below 1"),
    ("clip", {"optim.weight_decay": -5.0}, "--optim.weight-decay -5"),
    ("clip", {"reading.crop_scale": (3.0, 5.0)}, "--reading.crop-scale 3 5"),
    ("clip", {"reading.crop_scale": (0.9, 0.5)}, "--reading.crop-scale 0.9 0.5"),
    ("clip", {"reading.crop_scale": (float("nan"), 1.0)}, "--reading.crop-scale nan 1"),
    ("clip", {"reading.val_fraction": 2.0}, "--reading.val-fraction 2"),
    ("clip", {"reading.max_damaged": 7.0}, "--reading.max-damaged 7"),
    ("clip", {"reading.workers": -1}, "--reading.workers -1"),
    ("clip", {"model.image_size": 0}, "--model.image-size 0"),
    ("clip", {"seed": -1}, "--seed -1"),
    ("clip", {"distil.into": "trunk"}, r"give --distil\.cache auto"),
    (
        "clip",
        {"distil.into": "trunk", "distil.cache": "auto", "distil.image_student": "resnet-micro"},
        r"leave out --distil\.image-student resnet-micro",
    ),
    ("distil", {}, "learns from a teacher alone"),
    ("distil", {"distil.cache": "auto", "fusion.variant": "full"}, "trains students alone"),
    ("dinorankclip", {"fusion.variant": "concat", "fusion.gate": False}, "concat has no gate"),
    ("clip", {"fusion.gate": False}, r"name it with --fusion\.variant"),
    ("clip", {"model.frozen_image_tower": True}, "an image tower that has learned something"),
    ("rank", {"loss.rankclip_eps": 1e-10}, "use --method rankclip without --loss.list-length"),
    ("rankclip", {"loss.rankclip_eps": 1e-10, "loss.list_length": 8}, "order 1 over whole lists"),
    ("rankclip", {"loss.rankclip_eps": -1.0}, "RankCLIP's public code has 1e-10"),
    ("rank", {"loss.gate_l1": (1e-4,)}, "--loss.gate-l1 has 1 numbers; give 2, one for each order from 2 to 3"),
    ("rank", {"loss.gate_l1": (1e-4, -1.0)}, "--loss.gate-l1 0.0001 -1: it must be 0 or more"),
    ("rankclip", {"loss.gate_start": (-3.0,)}, "order 1 has no gates: leave it out"),
    ("rank", {"loss.gate_start": (-3.0, float("inf"))}, "--loss.gate-start -3 inf: it must be a finite number"),
    ("rank", {"loss.detached_scale": True, "loss.utility": "cosine"}, "cosine utilities have no scale"),
    ("rank", {"loss.in_weight": -0.5}, "--loss.in-weight -0.5: it must be 0 or more"),
    ("rank", {"loss.direction_weights": (1.0, float("nan"))}, "--loss.direction-weights 1 nan"),
    ("clip", {"optim.temperature_rate": 0.0}, "--optim.temperature-rate 0: it must be above 0"),
    ("dinorankclip", {"optim.fusion_rate": -1.0}, "--optim.fusion-rate -1"),
    ("dinorankclip", {"optim.gates_rate": float("inf")}, "--optim.gates-rate inf"),
    ("dinorankclip", {"fusion.variant": "concat", "fusion.gate_bias": -2.0}, r"\(concat\) has no gate; leave it out"),
    ("dinorankclip", {"fusion.gate": False, "fusion.gate_bias": -2.0}, r"\(full\) has no gate; leave it out"),
    ("clip", {"fusion.gate_bias": -2.0}, r"name it with --fusion\.variant"),
]


def settings_of(method, changes):
    return with_changes(for_method(preset("scenes"), method), changes)


def test_every_run_of_every_study_is_as_it_was_asked_for():
    for study in STUDIES.values():
        for run in [*study().tuning(), *study().runs()]:
            assert validated(run.settings) == run.settings, (study, run.cell)


def test_every_preset_and_method_is_as_it_stands():
    for name in PRESETS:
        for method in METHODS:
            cache = {"distil.cache": "auto"} if method == "distil" else {}
            asked = with_changes(for_method(preset(name), method), cache)
            assert validated(asked) == asked


def test_every_method_has_its_traits_and_an_unknown_one_is_told():
    assert tuple(TRAITS) == METHODS
    with pytest.raises(UserError, match="unknown method 'clap'; there are clip, "):
        validated(replace(preset("scenes"), method="clap"))
    assert traits_of_stored("clap").words == "clap"  # a run of another version


@pytest.mark.parametrize(("method", "changes", "why"), SENSELESS)
def test_what_nobody_can_mean_is_refused(method, changes, why):
    with pytest.raises(UserError, match=why):
        validated(settings_of(method, changes))


@pytest.mark.parametrize(("method", "changes", "why"), SENSELESS)
def test_a_cell_of_a_study_is_refused_likewise(method, changes, why, tmp_path):
    run = Run("odd", 0, settings_of(method, changes))
    with pytest.raises(UserError, match=rf"cell odd: .*{why}"):
        write_queue(tmp_path, [run], ())
    assert not (tmp_path / QUEUE).exists()
    with pytest.raises(UserError, match=why):
        train_run(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_setting_decides_another():
    assert validated(settings_of("dinorankclip", {"distil.cache": "none"})).distil.cache is None
    typed = settings_of("dinorankclip", {"distil.gram_reduction": "sum"})
    with_report = validated(typed)
    assert with_report.record.gradient_report_every == typed.record.log_every
    frozen = {"init": "some-run", "model.frozen_image_tower": True, "reading.flip": True}
    reading = validated(settings_of("clip", frozen)).reading
    assert (reading.crop_scale, reading.flip) == ((1.0, 1.0), False)
    for settings in (with_report, validated(settings_of("clip", frozen))):
        assert validated(settings) == settings


@pytest.mark.parametrize("without", [{"distil.cache": "none"}, {"distil.criterion": "rkd"}])
def test_a_sum_over_a_gram_that_is_not_compared_asks_for_no_report(without):
    result = validated(settings_of("dinorankclip", {"distil.gram_reduction": "sum"} | without))
    assert result.record.gradient_report_every == 0
