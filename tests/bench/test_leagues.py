"""Leagues at equal core-seconds on tiny data: steps from cost ratios, pairing by seed, resumption, the page."""

import json
from dataclasses import replace

import pytest
import torch

from bench import leagues, leagues_page, leagues_short
from bench.decoded_pairs import DecodedSource, read_from_memory
from bench.leagues import Bench, start_of, steps_in
from bench.leagues_cells import Cell, read_leagues
from bench.leagues_data import open_data
from bench.locked import lock, train_locked
from dinorankclip.config import as_dict
from dinorankclip.data.open_data import open_stored
from dinorankclip.data.scenes.make import make_scenes
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.recipes import RECIPES
from dinorankclip.stored_settings import flatten
from dinorankclip.train.assemble import assemble
from dinorankclip.types import UserError
from dinorankclip_studies.verdicts import paired

ANCHOR = {"distil.cache": "auto", "distil.into": "trunk", "distil.tokens": "penultimate", "distil.weight": 0.0}
ANCHOR |= {"anchor.weight": 1.0}
NONE = {"kinds_train": 0, "kinds_test": 0, "fine_train": 0, "fine_test": 0}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leagues") / "scenes"
    return make_scenes(folder, seed=0, train=24, val=8, test=4, workers=1, **NONE)


@pytest.fixture
def bench(scenes, tmp_path, monkeypatch):
    monkeypatch.setattr(leagues, "BUILT", tmp_path / "built")
    monkeypatch.setattr("bench.leagues_data.home", lambda: tmp_path)
    table = read_leagues()
    world = replace(table.worlds["scenes"], changes={"budget.batch": 8, "model.trunk": "drc-tiny"})
    data = open_data("scenes", str(scenes), sealed_seed=7, sealed_count=10)
    return Bench(table, world, data, tmp_path, rounds=1)


def test_steps_follow_from_the_cost_ratio():
    assert steps_in(60, 0.25, 1.0) == 240
    assert steps_in(60, 0.25, 1.2) == 200
    assert steps_in(60, 0.25, 0.75) == 320
    assert steps_in(60 - 45, 0.25, 1.2) == 50  # the cache included
    assert steps_in(-1, 0.25, 1.0) == 0


def test_every_cell_of_the_file_is_valid_and_equal_cells_share_their_runs():
    table = read_leagues()
    for world in table.worlds.values():
        for group in table.groups.values():
            assert group.reference in group.cells
            for cell in group.cells.values():
                settings = cell.settings(world, "scenes", seed=3, steps=5)
                assert (settings.seed, settings.budget.steps, settings.reading.workers) == (3, 5, 0)
    clip = table.reference.digest
    shared = [name for name, group in table.groups.items() if group.cells[group.reference].digest == clip]
    assert {"optimisers", "league-a", "league-b", "decisive", "photos", "paper"} <= set(shared)
    taught = table.group("decisive").cells["taught"].settings(table.worlds["scenes"], "scenes")
    recipe = RECIPES["taught"].changes(taught)
    assert flatten(as_dict(taught)).items() >= recipe.items()  # the cell is what the recipe gives
    league = table.group("league-b").cells
    world = table.worlds["scenes"]
    assert not league["clip"].uses_teacher(world) and league["trunk-student"].uses_teacher(world)
    assert list(table.group("league-a/siglip").cells) == ["siglip"]
    with pytest.raises(UserError, match="group league-a has no cell taught"):
        table.group("league-a/taught")
    with pytest.raises(UserError, match="there is no group league-z"):
        table.group("league-z")
    assert world.budget("T2") == 180 and world.budget("12.5") == 12.5
    with pytest.raises(UserError, match="T1, T2, T3"):
        world.budget("T9")


def test_batches_from_memory_are_those_of_the_loader(bench, scenes):
    cell = Cell("alip", {"method": "alip", "reading.crop_scale": [0.5, 1.0], "reading.flip": True})
    settings = cell.settings(bench.world, str(scenes), seed=5, steps=4)
    read, held = assemble(settings), assemble(settings)
    read_from_memory(held.loader, DecodedSource(open_stored(scenes)), Tokenizer())
    for _, ours, theirs in zip(range(4), held.loader, read.loader):
        assert ours.keys == theirs.keys and ours.captions == theirs.captions and ours.views == theirs.views
        for name in ("images", "texts", "second_texts", "groups"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))


def test_cells_of_a_seed_start_alike_and_see_the_same_pairs(bench):
    cells = [cell for cell in bench.leagues.group("league-a").cells.values()]
    starts = {seed: {start_of(bench.assembled(cell, seed, 2)) for cell in cells} for seed in (0, 1)}
    assert len(starts[0]) == len(starts[1]) == 1 and starts[0] != starts[1]


def test_a_run_is_made_once_goes_on_after_a_stop_and_is_scored(bench, monkeypatch):
    cell = bench.leagues.group("league-a").cells["rankclip-32"]
    cell = Cell(cell.name, cell.changes | {"loss.list_length": 4})
    whole = bench.run(cell, 1.0, "none", 0, 5)
    assert [point[0] for point in whole["curve"]] == [3, 5]  # 24 images make three steps an epoch
    assert whole["core_seconds"] == whole["curve"][-1][1] > 0
    assert whole["scores"]["val/mean R@1"] == pytest.approx(whole["curve"][-1][2], abs=1e-6)
    names = {"i2t R@1", "t2i R@10", "mean R@1", "mean R@1 of 100", "mean log-rank"}
    assert {f"{part}/{name}" for part in ("val", "test") for name in names} <= whole["scores"].keys()
    # A gallery of all images is the whole test.
    assert whole["scores"]["test/mean R@1 of 100"] == whole["scores"]["test/mean R@1"]

    class StopsAtOnce(leagues.StopRequest):
        def agreed(self):
            return True

    with monkeypatch.context() as patch:
        patch.setattr(leagues, "StopRequest", StopsAtOnce)
        assert bench.run(cell, 1.0, "none", 0, 5) is None
    again = bench.run(cell, 1.0, "none", 0, 5)
    assert again["scores"] == whole["scores"] and again["start"] == whole["start"]
    assert [point[0] for point in again["curve"]] == [3, 5]


def test_costs_are_measured_once_and_shared(bench, capsys):
    cells = list(bench.leagues.group("league-a").cells.values())[:2]
    bench.measure([bench.leagues.reference, *cells])
    stored = json.loads((bench.out / "costs.json").read_text())["scenes-24"]["cells"]
    assert stored[bench.leagues.reference.digest]["median"] == 1 and stored[cells[1].digest]["median"] > 0
    capsys.readouterr()
    bench.measure(cells)
    assert capsys.readouterr().out == ""
    clip, other = (bench.steps(cell, 100.0, "none") for cell in cells)
    assert clip == int(100 / bench.reference_step()) and other == int(clip / stored[cells[1].digest]["median"])


def test_a_cell_may_take_the_cost_of_another(bench):
    other = {"optim.lr": 2e-3}
    cells = [
        Cell("slow", {"optim.warmup_steps": 3, "cost_of": other}),
        Cell("bare", {"optim.lr": 3e-3, "cost_of": other}),
    ]
    bench.measure(cells)
    stored = bench.costs()["cells"]
    assert list(stored) == [Cell("", other).digest] and stored[cells[0].cost_digest]["cell"].endswith("(cost_of)")
    assert bench.steps(cells[0], 100.0, "none") == bench.steps(cells[1], 100.0, "none") > 0
    assert cells[0].digest == Cell("", {"optim.warmup_steps": 3}).digest != cells[1].digest
    assert cells[0].settings(bench.world, "scenes").optim.warmup_steps == 3


def line(cell, seed, score, mode="none", budget=60.0, curve=(), start="a"):
    scores = {"val/mean R@1": score, "test/mean R@1": score, "test/i2t R@1": score, "test/mean log-rank": 1.5}
    head = {"key": f"{cell.digest}/{mode}/{seed}", "world": "scenes-1", "data": "scenes-24", "budget": budget}
    head |= {"cell": cell.name, "digest": cell.digest, "cache": mode, "seed": seed, "start": f"{start}{seed}"}
    return head | {"scores": scores, "steps": 100, "core_seconds": 61.0, "curve": list(curve)}


def write_runs(folder, lines, costs=None):
    (folder / "runs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (folder / "costs.json").write_text(json.dumps({"scenes-24": costs or {"cells": {}, "caches": {}}}))


def test_the_page_pairs_seeds_and_shows_both_columns(tmp_path):
    table = read_leagues()
    cells = table.group("league-b").cells
    clip, student = cells["clip"], cells["trunk-student"]
    lines, ahead, amortised = [], (0.020, 0.024, 0.022, 0.018), (0.04, 0.05, 0.045, 0.047)
    for seed in range(4):
        own = 0.30 + 0.05 * seed
        curve = [[50, 1.0, own / 2], [100, 2.0, own]]
        lines += [line(clip, seed, own, curve=curve), line(student, seed, own + ahead[seed], "included", curve=curve)]
        lines.append(line(student, seed, own + amortised[seed], "amortised", curve=curve))
    costs = {"cells": {table.reference.digest: {"median": 1.0, "step": 0.5}}, "caches": {}}
    costs["cells"][student.digest] = {"median": 1.3, "step": 0.65}
    costs["caches"]["x"] = {"teachers": "efficientnet-lite0 at 224 px", "core_seconds": 33.0}
    write_runs(tmp_path, lines, costs)
    leagues_page.write_page(tmp_path, table)
    page, numbers = (tmp_path / "README.md").read_text(), json.loads((tmp_path / "summary.json").read_text())
    assert "Core-seconds of caches: efficientnet-lite0 at 224 px 33." in page
    assert "cache included" in page and "cache amortised" in page and "did not start alike" not in page
    found = numbers["scenes-1/60/league-b/included"]["trunk-student"]
    wanted = paired(dict.fromkeys(range(4), 0.0), dict(enumerate(ahead)))
    assert found["difference"] == pytest.approx(0.021) and found["low"] == pytest.approx(wanted.low)
    assert numbers["scenes-1/60/league-b/amortised"]["trunk-student"]["difference"] == pytest.approx(0.0455)
    row = next(row for row in page.splitlines() if row.startswith("| trunk-student |"))
    assert row.startswith("| trunk-student | 4 | 100 | 1.300 | 39.60 |") and "| better |" in row and "+2.10 [" in row
    # 20 % lies between the points of the first seed's curve: 50 steps at 15 %, 100 at 30 %.
    assert leagues_page.seconds_to([[50, 1, 0.15], [100, 2, 0.30]], 0.20, 0.5) == pytest.approx((50 + 50 / 3) * 0.5)
    assert leagues_page.seconds_to([[50, 1, 0.15]], 0.20, 0.5) is None
    own = {"curve": [[50, 1, 0.2]], "cache_seconds": 33.0}
    assert leagues_page.time_of(own, 0.2, 0.5) == 58 and leagues_page.time_of(own, 0.3, 0.5) is None
    assert leagues_page._median([10.0, None, 30.0]) == "30 (2 of 3)" and leagues_page._median([None]) == "–"
    assert leagues_page._median([10.0, 30.0]) == "20" and leagues_page._median([10.0, None]) == "– (1 of 2)"


def test_the_short_table_has_both_budgets_and_no_interval_of_two_seeds():
    table = read_leagues()
    clip, taught, siglip = (
        table.groups[g].cells[c] for g, c in (("league-a", "clip"), ("league-b", "taught"), ("league-a", "siglip"))
    )
    runs = []
    for seed in range(3):
        own = 0.20 + 0.01 * seed
        runs += [line(clip, seed, own), line(clip, seed, own + 0.2, budget=180.0)]
        runs += [line(taught, seed, own + 0.07, "amortised"), line(taught, seed, 0.9, "included")]
        runs += [line(taught, seed, own + 0.28, "included", budget=180.0)]
        runs += [line(siglip, seed, own + 0.17, budget=180.0)] if seed < 2 else []
    runs = [run | {"data": leagues_short.DATA} for run in runs]
    costs = {"cells": {cell.digest: {"median": ratio} for cell, ratio in ((clip, 1.0), (taught, 1.06), (siglip, 0.98))}}
    assert leagues_short.rows(runs, table, costs)[2:] == [
        "| CLIP | 1.00 | 21.0 % | – | 41.0 % | – |",
        "| **`--recipe taught`**: third tower and lists | 1.06 | 28.0 % | +7.0 [7.0, 7.0] (3 seeds) | 49.0 % | "
        "+8.0 [8.0, 8.0] (3 seeds) |",
        "| SigLIP | 0.98 | – | – | 37.5 % | −3.0 (2 seeds) |",
    ]


def test_the_page_names_runs_that_did_not_start_alike(tmp_path):
    cells = read_leagues().group("league-a").cells
    lines = [line(cells["clip"], 0, 0.3), line(cells["siglip"], 0, 0.3, start="b")]
    write_runs(tmp_path, lines)
    leagues_page.write_page(tmp_path)
    assert "**Runs of seeds [0] did not start alike" in (tmp_path / "README.md").read_text()


def test_the_page_names_cells_whose_defaults_have_changed(tmp_path):
    cells = read_leagues().group("league-a").cells
    lines = [line(cells["clip"], seed, 0.3) | {"settings": f"of {seed}"} for seed in range(2)]
    write_runs(tmp_path, [*lines, line(cells["siglip"], 0, 0.3)])
    leagues_page.write_page(tmp_path)
    assert "**Runs of clip had different settings" in (tmp_path / "README.md").read_text()


def test_a_champion_must_lead_every_rival_by_a_point():
    table = read_leagues()
    group = replace(table.group("league-b"), champion="trunk-student", rivals=("league-a",))
    clip, siglip = (table.group("league-a").cells[name] for name in ("clip", "siglip"))
    runs = []
    for seed, noise in enumerate((0.0, 0.001, 0.002, 0.003)):
        runs += [line(group.cells["trunk-student"], seed, 0.40 + noise, "included")]
        runs += [line(clip, seed, 0.37), line(siglip, seed, 0.393)]
    _, numbers = leagues_page.champion_table(runs, table, group, "included")
    assert numbers["league-a/clip"]["won"] and not numbers["league-a/siglip"]["won"]
    assert numbers["league-a/clip"]["difference"] == pytest.approx(0.0315)


def test_a_locked_image_tower_learns_captions_alone(bench):
    cell = Cell("lit", {"locked": True, **ANCHOR, "distil.teacher": "random-vit:0", "distil.teacher_size": 32})
    bench.measure([bench.leagues.reference, cell])
    parts = lock(bench.assembled(cell, 0, 3))
    before = {name: value.clone() for name, value in parts.state.model.state_dict().items()}
    record = bench.run(cell, 5, "amortised", 0, 3)
    again = bench.run(cell, 5, "amortised", 0, 3)
    assert record["scores"] == again["scores"] and [point[0] for point in record["curve"]] == [3]
    reference = bench.assembled(bench.leagues.reference, 0, 3)
    assert record["start"] == start_of(reference)
    plain = reference.state.model.state_dict()
    assert torch.equal(before["trunk.towers.token_embedding.weight"], plain["trunk.towers.token_embedding.weight"])
    train_locked(parts, lambda model: iter(()))
    after = parts.state.model.state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert not any(name.startswith("trunk.towers.visual.") for name in changed)
    assert {"anchor.projection.weight", "trunk.towers.token_embedding.weight"} <= changed


def test_amounts_of_data_forecast_and_multiplier():
    from bench.leagues_scaling import Amount, forecasts, line_forecast, multiplier

    exact = line_forecast([10, 11, 12, 13], [1.0, 2.0, 3.0, 4.0], 14)
    assert exact.value == pytest.approx(5) and exact.low == pytest.approx(5) and exact.high == pytest.approx(5)
    # A case by hand: y = 0, 1, 0 at x = 0, 1, 2 has the mean 1/3, slope 0, one degree of freedom, s² = 2/3.
    spread = line_forecast([0, 1, 2], [0.0, 1.0, 0.0], 3)
    reach = 12.7062 * (2 / 3) ** 0.5 * (1 + 1 / 3 + 4 / 2) ** 0.5
    assert spread.value == pytest.approx(1 / 3) and spread.high - spread.value == pytest.approx(reach, rel=1e-4)
    amounts = [
        Amount(pairs, {0: clip, 1: clip}, {0: taught, 1: taught})
        for pairs, clip, taught in ((1000, 0.1, 0.15), (2000, 0.2, 0.3), (4000, 0.3, 0.35))
    ]
    assert multiplier(amounts, amounts[0]) == pytest.approx(2**0.5)
    assert multiplier(amounts, amounts[1]) == pytest.approx(2.0)
    assert multiplier(amounts, amounts[2]) == float("inf")  # no amount of CLIP's reaches it
    assert multiplier(amounts, Amount(1000, {0: 0.1}, {0: 0.05})) == 0  # the least reaches more
    clip, lead = forecasts(amounts)
    assert clip.low < clip.value < clip.high and lead.value == pytest.approx(0.2 / 3)
    assert forecasts([*amounts[:2], Amount(16_000, {0: 0.9}, {0: 0.9})]) is None  # the largest amount says nothing


def test_costs_of_other_data_hold_with_caches_in_proportion(bench):
    taught = Cell("anchor", {**ANCHOR, "distil.teacher": "random-vit:0", "distil.teacher_size": 32})
    bench.costs_of = "scenes-48"
    reference = {"cell": "clip", "median": 1.0, "low": 1.0, "high": 1.0, "rounds": 3, "step": 0.5}
    cells = {bench.leagues.reference.digest: reference, taught.digest: {**reference, "median": 1.25}}
    cache = {"teachers": str(leagues.cache_spec_of(taught.settings(bench.world, "scenes"))), "core_seconds": 3.0}
    (bench.out / leagues.COSTS).write_text(json.dumps({"scenes-48": {"cells": cells, "caches": {"x": cache}}}))
    bench.take_over([taught])
    assert bench.reference_step() == 0.5 and bench.cache_seconds(taught, "included") == 1.5  # 24 pairs of 48
    assert bench.steps(taught, 60, "included") == int(int(58.5 / 0.5) / 1.25)
    with pytest.raises(UserError, match="was not measured there"):
        bench.take_over([Cell("siglip", {"method": "siglip"})])
    bench.costs_of = "flickr8k"
    with pytest.raises(UserError, match="must end with a number of pairs"):
        bench.take_over([taught])
