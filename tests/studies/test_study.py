from dataclasses import replace

import pytest

from dinorankclip.config import TrainSettings, as_dict, changed_at, with_changes
from dinorankclip.presets import for_method, preset
from dinorankclip.stored_settings import BEFORE_SETTING, difference, settings_from_json
from dinorankclip.types import UserError
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.plan import check_plan
from dinorankclip_studies.study import Cell, Numbers, key_of

BASE = preset("scenes")


def test_a_cell_is_its_method_then_its_changes_then_the_seed():
    settings = Cell("a", "dinorankclip", {"loss.order": 2, "distil.cache": None}).settings(BASE, 7)
    assert (settings.method, settings.loss.order, settings.distil.cache, settings.seed) == ("dinorankclip", 2, None, 7)
    assert settings.fusion.variant == "full"  # which the method brings


def test_an_unknown_setting_is_named():
    with pytest.raises(UserError, match=r"no setting 'ordre' in LossSettings"):
        Cell("a", "rank", {"loss.ordre": 2}).settings(BASE, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("run", "elsewhere"), ("budget.threads", 3), ("reading.workers", 4), ("record.keep", 9), ("preset", "other")],
)
def test_what_does_not_change_a_result_does_not_change_the_key(name, value):
    assert key_of(changed_at(BASE, name, value)) == key_of(BASE)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 1),
        ("optim.lr", 2e-3),
        ("optim.heads_rate", 30.0),
        ("optim.heads_eps", 1e-8),
        ("loss.order", 2),
        ("data", "other"),
    ],
)
def test_what_changes_a_result_changes_the_key(name, value):
    assert key_of(changed_at(BASE, name, value)) != key_of(BASE)


def test_settings_of_parts_that_are_off_do_not_matter():
    clip = for_method(BASE, "clip")
    assert key_of(changed_at(clip, "distil.weight", 0.1)) == key_of(clip)
    full = for_method(BASE, "dinorankclip")
    assert key_of(changed_at(full, "distil.weight", 0.1)) != key_of(full)


def test_keys_are_of_differences_to_the_defaults():
    # A setting that a later version adds has its default in all runs of today: their keys stay.
    today = with_changes(TrainSettings(), BEFORE_SETTING)
    assert key_of(today) == key_of(replace(today, run="x")) == "44136fa355b3"
    # A default that is not what older runs did is in the key, unless it has no effect.
    assert key_of(TrainSettings()) != key_of(today)
    lists = changed_at(today, "loss.gate_l1_size", "lists")
    first, plain = (changed_at(settings, "loss.order", 1) for settings in (lists, today))
    assert key_of(first) == key_of(plain)
    assert key_of(changed_at(plain, "loss.several_positives", True)) != key_of(plain)


def test_a_file_that_lacks_a_setting_means_what_its_runs_did():
    stored = as_dict(TrainSettings())
    assert settings_from_json(stored).loss.gate_l1_size == "lists"
    assert settings_from_json(stored).loss.several_positives
    del stored["loss"]["gate_l1_size"], stored["loss"]["several_positives"]
    assert settings_from_json(stored).loss.gate_l1_size == "plain"
    assert not settings_from_json(stored).loss.several_positives


def test_settings_come_back_from_json():
    import json

    settings = for_method(BASE, "dinorankclip")
    assert settings_from_json(json.loads(json.dumps(as_dict(settings)))) == settings


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_the_cells_of_its_tables_once(name):
    study = STUDIES[name]()
    names = [cell.name for cell in study.cells]
    assert len(set(names)) == len(names)
    wanted = {row.cell for experiment in study.experiments for row in experiment.rows}
    assert wanted <= set(names)
    keys = {cell.name: key_of(cell.settings(study.base, 0)) for cell in study.cells}
    doubles = {a for a in keys for b in keys if a != b and keys[a] == keys[b]}
    # The paper's point of 1M pairs is also where its ablations start.
    shared = {f"{cell}{end}" for cell in ("clip", "rankclip", "full") for end in ("-ablation", "-n1000-sweep")}
    # Where heads of all cells are fast, a cell with fast heads is the plain cell; tables show the run once.
    fast = {f"{cell}{end}" for cell in ("rank-2", "rank-3", "full") for end in ("", "-quick")}
    assert doubles == {"cc3m": shared, "tuned": fast}.get(name, set())
    for experiment in study.experiments:
        rows = [keys[row.cell] for row in experiment.rows]
        assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("name", ["full", "tuned"])
def test_runs_are_balanced_over_seeds_decisive_cells_first(name):
    study = STUDIES[name]()
    order = [(run.seed, study.seeds[run.cell] == 8) for run in study.runs()]
    assert [seed for seed, _ in order] == sorted(seed for seed, _ in order)
    for seed in range(8):
        decisive = [one for at, one in order if at == seed]
        assert decisive == sorted(decisive, reverse=True)
    assert sum(decisive for _, decisive in order) == 10 * 8


def test_every_method_tries_the_same_rates_on_a_seed_of_its_own():
    runs = STUDIES["full"]().tuning()
    tried = {}
    for run in runs:
        assert run.seed == 1000 and not run.score
        tried.setdefault(run.settings.method, []).append(run.settings.optim.lr)
    assert set(tried) == {"clip", "cyclip", "alip", "rankclip", "rank", "dinorankclip"}
    assert all(rates == [5e-4, 1e-3, 2e-3] for rates in tried.values())


def test_cells_that_no_check_of_budgets_sees_differ_in_one_thing():
    """Tables list them as unmatched; beside their own counterpart they must be matched all the same."""
    study = STUDIES["full"]()
    counterparts = {
        "control-large-trunk": ("rank-3", "model.trunk"),
        "control-clip-longer": ("clip", "budget.epochs"),
        **{f"{name}-quick": (name, "optim.heads_rate") for name in ("rank-2", "rank-3", "full")},
        **{f"{name}-cosine": (name, "loss.utility") for name in ("rankclip", "rank-3")},
    }
    movable = {"full-movable"}  # a positive control: everything at once that was held back
    for name in ("clip", "rankclip", "full"):
        counterparts |= {f"{name}-n{items}": (name, "reading.train_items") for items in (1000, 2000)}
    exempt = {name for experiment in study.experiments for name in experiment.unmatched}
    assert exempt == counterparts.keys() | movable
    for name, (like, setting) in counterparts.items():
        ours, theirs = (as_dict(study.cell(one).settings(study.base, 0)) for one in (name, like))
        assert [line.split(":")[0] for line in difference(theirs, ours)] == [setting]


def test_the_tuned_study_has_the_cells_of_the_scenes_study_on_top_of_muon():
    tuned, full = STUDIES["tuned"](), STUDIES["full"]()
    assert [cell.name for cell in tuned.cells] == [cell.name for cell in full.cells]
    assert tuned.seeds == full.seeds and tuned.scenes == full.scenes and tuned.sets == full.sets
    assert not tuned.tuning() and "CLIP's validation score" in tuned.rate_note
    for cell in tuned.cells:
        settings = cell.settings(tuned.base, 0)
        assert (settings.optim.name, settings.optim.muon_rate, settings.optim.muon_momentum) == ("muon", 10.0, 0.8)
        assert (settings.optim.heads_rate, settings.optim.gates_rate) == (30.0, 10.0)
        assert (settings.loss.list_length, settings.loss.gate_l1_size) == (32, "lists")
        assert settings.loss.several_positives and settings.distil.compare_grid == 4
    assert not {run.key for run in tuned.runs()} & {run.key for run in full.runs()}
    movable, plain = (as_dict(tuned.cell(name).settings(tuned.base, 0)) for name in ("full-movable", "full"))
    assert [line.split(":")[0] for line in difference(plain, movable)] == ["fusion.start"]


@pytest.mark.parametrize(
    ("name", "epochs", "longer"), [("small", 8, 22), ("full", 10, 28), ("tuned", 8, 22), ("cc3m", 32, 40)]
)
def test_the_longer_clip_fills_the_time_of_the_full_method(name, epochs, longer):
    study, end = STUDIES[name](), "-ablation" if name == "cc3m" else ""
    assert study.cell(f"full{end}").settings(study.base, 0).budget.epochs == epochs
    assert study.cell(f"control-clip-longer{end}").settings(study.base, 0).budget.epochs == longer


@pytest.mark.parametrize("name", ["small", "full"])
def test_cells_that_are_trained_longer_differ_from_their_short_ones_in_that_alone(name):
    study = STUDIES[name]()
    assert [row.cell for one in study.experiments if one.name == "longer" for row in one.rows] == [
        "control-clip-longer", "rankclip-longer", "rank-3-longer", "full-longer"
    ]  # fmt: skip
    as_long = study.cell("control-clip-longer").settings(study.base, 0).budget.epochs
    for short in ("rankclip", "rank-3", "full"):
        ours, theirs = (as_dict(study.cell(one).settings(study.base, 0)) for one in (f"{short}-longer", short))
        assert difference(theirs, ours) == [f"budget.epochs: {study.base.budget.epochs} → {as_long}"]


def test_the_papers_plan_has_the_papers_numbers():
    study = STUDIES["cc3m"]()
    at = {cell.name: cell.settings(study.base, 0) for cell in study.cells}

    def numbers(cell):
        return study.pairs_of(at[cell]), at[cell].budget.epochs

    assert {numbers(cell) for cell in ("clip", "cyclip", "alip", "rankclip", "rank-3", "full")} == {(2_710_000, 64)}
    assert numbers("rank-5-sweep") == numbers("full-0-sweep") == (2_710_000, 32)
    assert [numbers(f"clip-n{n}-sweep") for n in (300, 1000, 2000)] == [(n * 1000, 32) for n in (300, 1000, 2000)]
    assert {numbers(cell) for cell in at if cell.endswith("-ablation")} == {(1_000_000, 32), (1_000_000, 40)}


def test_numbers_of_the_command_line_stand_in_place_of_the_studys_own():
    few = STUDIES["cc3m"](Numbers(epochs=8, pairs=300_000)).with_seeds(2)
    assert {few.pairs_of(cell.settings(few.base, 0)) for cell in few.cells} == {300_000}
    assert {cell.settings(few.base, 0).budget.epochs for cell in few.cells} == {8, 10}
    assert set(few.seeds.values()) == {2}
    other = STUDIES["cc3m"](Numbers(sweep_epochs=16, ablation_epochs=4, ablation_pairs=500_000))
    at = {cell.name: cell.settings(other.base, 0) for cell in other.cells}
    assert (at["full"].budget.epochs, at["full-sweep"].budget.epochs) == (64, 16)
    assert (at["full-ablation"].budget.epochs, at["full-ablation"].reading.train_items) == (4, 500_000)
    scenes = STUDIES["full"](Numbers(epochs=2, pairs=1500))
    at = {cell.name: cell.settings(scenes.base, 0) for cell in scenes.cells}
    assert (scenes.scenes.train, at["clip"].budget.epochs, at["control-clip-longer"].budget.epochs) == (1500, 2, 6)
    assert (at["clip-n1000"].reading.train_items, at["clip-n2000"].reading.train_items) == (1000, 1500)
    for changed in (few, other, scenes):
        check_plan(changed)


def test_runs_of_the_whole_corpus_keep_the_keys_that_they_had_before_the_papers_scales():
    whole = STUDIES["cc3m"](Numbers(epochs=64, ablation_pairs=2_710_000))
    keys = {run.cell: run.key for run in whole.runs()}
    assert keys["full-mse-ablation"] == "6653f1cc7035" and keys["rank-2-sweep"] == "20b656dd26ad"
    assert (
        keys["full-dinov2-ablation"] == "a99d77fdacf5" and keys["full-ablation"] == keys["full"] == keys["full-sweep"]
    )
