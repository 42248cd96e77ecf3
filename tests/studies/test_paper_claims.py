import pytest

from dinorankclip_studies.claim import AllHold, caveat, judged
from dinorankclip_studies.papers.claims_file import load_claims
from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.plans import AT_SCALE_CELLS, CELLS, CLAIMS, STUDIES, claims_of
from dinorankclip_studies.quantities import Context
from dinorankclip_studies.results import Results
from dinorankclip_studies.run_times import Bench
from tests.studies.kinds import CC3M, CC3M_EXPERIMENTS, EXPERIMENTS, FLICKR_EXPERIMENTS, SCENES
from tests.studies.worlds import as_claimed, bench, flat, opposite, results, telemetry

BY_ID = {claim.id: claim for claim in CLAIMS}
DIFFERENCES = [claim for claim in CLAIMS if isinstance(claim.judge, AllHold)]
NAMES = {cell.name for cell in (*CELLS, *AT_SCALE_CELLS)}


def context(found, measures=SCENES, bench=None):
    return Context(found, measures, bench or Bench())


def ids(claims):
    return [claim.id for claim in claims]


@pytest.fixture(scope="module")
def claimed():
    return context(results(), bench=bench())


@pytest.fixture(scope="module")
def reversed_world():
    return context(results(opposite), bench=bench())


@pytest.fixture(scope="module")
def without_effect():
    return context(results(flat), bench=bench())


@pytest.fixture(scope="module")
def blurred():
    return context(results(flat, noise=0.02), bench=bench())


def test_there_are_enough_and_each_is_named_once():
    assert len(CLAIMS) >= 24
    assert len(BY_ID) == len(CLAIMS)


@pytest.mark.parametrize("claim", CLAIMS, ids=ids(CLAIMS))
def test_a_claim_rests_on_cells_and_tables_that_exist(claim):
    assert set(claim.cells) <= NAMES
    if claim.only == ("cc3m",):
        claim = next(one for one in claims_of(CC3M) if one.id == claim.id)
    of_study = CC3M_EXPERIMENTS if claim.only == ("cc3m",) else EXPERIMENTS
    tables = {experiment.name: experiment for experiment in of_study}
    assert claim.experiments and set(claim.experiments) <= tables.keys()
    shown = {row.cell for name in claim.experiments for row in tables[name].rows}
    assert set(claim.cells) <= shown, "its tables must show what decides it"


def test_accuracy_is_the_papers_own_at_its_scale_and_recall_below(claimed):
    small, large = (BY_ID["order-hierarchy"].evidence(context(claimed.results, one)).shown for one in (SCENES, CC3M))
    assert [line.label for line in small[:1]] == ["rankclip - clip, R@1"] and small[0].scores == (SCENES.mean_r1,)
    assert [line.label for line in large[:1]] == ["rankclip - clip, T@1"] and large[0].scores == (CC3M.top1,)
    shown = [line for claim in CLAIMS for line in claim.evidence(claimed).shown]
    assert shown and not any("<" in line.label for line in shown)


@pytest.mark.parametrize("claim", CLAIMS, ids=ids(CLAIMS))
def test_without_runs_nothing_is_said(claim):
    found = claim.evidence(context(Results("full", ())))
    assert found.verdict == "not run"
    assert found.remarks


@pytest.mark.parametrize("claim", CLAIMS, ids=ids(CLAIMS))
def test_where_the_paper_is_right_the_claim_is_supported(claim, claimed):
    found = claim.evidence(claimed)
    assert found.verdict == "supported", found


@pytest.mark.parametrize("claim", DIFFERENCES, ids=ids(DIFFERENCES))
def test_where_it_is_the_other_way_round_the_claim_is_contradicted(claim, reversed_world):
    assert claim.evidence(reversed_world).verdict == "contradicted"


@pytest.mark.parametrize("claim", DIFFERENCES, ids=ids(DIFFERENCES))
def test_where_there_is_nothing_the_claim_is_not_supported(claim, without_effect):
    assert claim.evidence(without_effect).verdict == "not supported"


@pytest.mark.parametrize("claim", DIFFERENCES, ids=ids(DIFFERENCES))
def test_where_nothing_could_be_seen_the_claim_is_inconclusive(claim, blurred):
    assert claim.evidence(blurred).verdict == "inconclusive"


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.cells], ids=lambda claim: claim.id)
def test_one_seed_is_inconclusive(claim):
    assert claim.evidence(context(results(seeds=1), bench=bench())).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("claim", "cell", "score", "value"),
    [
        ("order-saturation", "full-4", SCENES.accuracy, 0.3),
        ("first-to-third", "rank-3", SCENES.accuracy, 0.5),
        ("order-0-is-clip", "distil-only", SCENES.accuracy, 0.4),
        ("additive", "full", SCENES.accuracy, 0.5),
        ("gap-equal-shares", "full", SCENES.cone, 40.0),
        ("gap-additive", "full-0", SCENES.cone, 70.0),
        ("failure-global-captions", "full", SCENES.top1, 0.3),
    ],
)
def test_an_equality_that_does_not_hold_is_contradicted(claim, cell, score, value):
    world = context(results(changes={(cell, score): value}))
    assert BY_ID[claim].evidence(world).verdict == "contradicted"


@pytest.mark.parametrize(
    "claim", ["order-saturation", "first-to-third", "additive", "gap-equal-shares", "gap-additive"]
)
def test_nothing_equals_nothing_but_supports_no_share(claim, without_effect, claimed):
    assert BY_ID[claim].evidence(without_effect).verdict == "not supported"
    assert BY_ID[claim].evidence(claimed).verdict == "supported"


def test_shares_that_go_the_wrong_way_are_contradicted_though_equal():
    wider = context(results(changes={("rank-3", SCENES.cone): 60.0, ("full", SCENES.cone): 62.0}))
    assert BY_ID["gap-equal-shares"].evidence(wider).verdict == "contradicted"


def test_costs_come_from_the_bench():
    dear = context(Results("full", ()), bench=bench((1.0, 1.04, 1.2, 2.0, 4.0, 8.0), full=3.0))
    verdicts = {name: BY_ID[name].evidence(dear).verdict for name in ("cost-order-3", "cost-full", "cost-linear")}
    assert set(verdicts.values()) == {"contradicted"}
    assert all(BY_ID[name].cells == () for name in verdicts)


def test_a_wide_angle_is_contradicted():
    assert BY_ID["angle-small"].evidence(context(results(reported=telemetry(angle=30.0)))).verdict == "contradicted"


def test_an_inert_order_supports_no_claim():
    inert = context(results(reported=telemetry(spread=1e-4)), bench=bench())
    for name in ("order-hierarchy", "order-hierarchy-teacher", "adds-high-order", "best-order-plain", "gain-per-cost"):
        found = BY_ID[name].evidence(inert)
        assert found.verdict == "not supported"
        assert "an order is inert" in found.marks
    assert BY_ID["order-3-acts"].evidence(inert).verdict == "contradicted"


def test_orders_that_do_nothing_do_not_saturate():
    inert = telemetry() | {f"spread{order}_{side}": 1e-4 for order in (4, 5) for side in ("image", "text")}
    found = BY_ID["order-saturation"].evidence(context(results(reported=inert)))
    assert found.verdict == "inconclusive"
    assert "order 5 of full-5: relative spread 0.0001, inert" in found.remarks


def _near_chance(cell):
    """Every zero-shot accuracy within a point of chance, in the paper's order."""
    found = as_claimed(cell)
    return found | {score: 1 / 129 + 0.02 * found[score] for score in (SCENES.top1, SCENES.shift)}


@pytest.mark.parametrize(
    "claim", ["main-top1", "shift-larger", "teacher-shift", "fine-more-than-coarse", "failure-global-captions"]
)
def test_what_no_model_can_do_decides_nothing(claim, claimed):
    found = BY_ID[claim].evidence(context(results(_near_chance), bench=bench()))
    assert found.verdict == "inconclusive"
    assert "near chance" in found.marks
    assert found.shown[0].effect.low is not None, "the effect itself is still reported"
    assert "near chance" not in BY_ID[claim].evidence(claimed).marks


def test_what_one_of_the_compared_cells_can_do_decides():
    world = results(_near_chance, changes={("full", SCENES.top1): 0.05})
    assert BY_ID["main-top1"].evidence(context(world)).verdict == "supported"


def test_a_family_may_still_be_contradicted_by_what_models_can_do():
    world = results(_near_chance, changes={("full-1", SCENES.fine_probe): 0.9})
    assert BY_ID["best-order"].evidence(context(world)).verdict == "contradicted"


def test_a_missing_rival_leaves_best_of_all_open():
    whole = results()
    partly = Results("full", tuple(run for run in whole.runs if run.cell != "cyclip"))
    found = BY_ID["main-top1"].evidence(context(partly))
    assert found.verdict == "not run"
    assert "no finished run of cyclip" in found.remarks


def test_only_seeds_that_both_cells_have_are_paired():
    whole = results(seeds=8)
    partly = Results("full", tuple(run for run in whole.runs if run.cell != "full-no-gate" or run.seed < 3))
    shown = BY_ID["adds-gate"].evidence(context(partly)).shown[0]
    assert shown.effect.n == 3
    assert shown.effect.mean == pytest.approx(0.02, rel=1e-3)
    assert shown.size == pytest.approx(0.002)


CAVEAT = "teacher efficientnet-lite0 (ImageNet-supervised): not DINOv3"


def test_whatever_a_teacher_touches_says_which(claimed):
    untaught = {"clip", "cyclip", "alip", "rankclip", "rank-2", "rank-3", "rank-4", "rank-5", "clip-n1000",
                "clip-n2000", "rankclip-n1000", "rankclip-n2000", "control-no-teacher", "control-large-trunk",
                "control-random-teacher", "control-clip-longer", "rank-2-quick", "rank-3-quick", "rankclip-longer",
                "rank-3-longer", "rankclip-detached", "rank-3-detached", "rankclip-cosine",
                "rank-3-cosine"}  # fmt: skip
    for claim in (claim for claim in CLAIMS if claim.only != ("cc3m",)):
        found = claim.evidence(claimed)
        taught = bool(set(claim.cells) - untaught)
        assert ((CAVEAT in found.remarks), (CAVEAT in found.marks)) == (taught, taught), claim.id


def test_the_papers_own_teacher_needs_no_caveat():
    assert caveat(results(name="cc3m"), ("full",)) == ""
    assert caveat(results(), ("clip", "control-random-teacher")) == ""
    assert caveat(results(), ("clip", "full", "full-no-text")) == CAVEAT


def test_the_photo_study_judges_what_it_has_run():
    cells = {row.cell for experiment in FLICKR_EXPERIMENTS for row in experiment.rows}
    found = judged(Results("flickr8k", ()))
    assert {"main-i2t", "teacher-fine", "gap-closes", "order-hierarchy"} <= {one.claim.id for one in found}
    assert all(set(one.claim.cells) <= cells and one.claim.cells for one in found)


def test_each_kind_of_study_judges_its_own_teachers():
    scenes, cc3m = ({one.claim.id for one in judged(Results(name, ()))} for name in ("full", "cc3m"))
    assert BY_ID.keys() - scenes == {"teacher-generations"}
    assert "teacher-generations" in cc3m and not {"teacher-stronger", "gain-per-cost", "cost-full"} & cc3m


def test_at_the_papers_scale_claims_rest_on_cells_of_the_scale_of_their_table():
    cells = {cell.name for cell in STUDIES["cc3m"]().cells}
    claims = {claim.id: claim for claim in claims_of(CC3M)}
    without = {name for name, claim in claims.items() if not set(claim.cells) <= cells}
    assert without == {"control-large-trunk"}
    assert set(claims["main-top1"].cells) == {"full", "clip", "cyclip", "alip", "rankclip"}
    assert set(claims["adds-gate"].cells) == {"full-ablation", "full-no-gate-ablation"}
    assert set(claims["order-decay"].cells) == {"full-sweep", "full-5-sweep"}
    assert "full-n300-sweep" in claims["scaling-widens"].cells
    assert claims["scaling-widens"].judge.contrasts[0].size == pytest.approx(0.0049)  # 1.14 - 0.65 points
    assert claims["adds-gate"].judge.contrasts[0].size == pytest.approx(0.002), "sizes are those of the paper's rows"


def test_a_supported_gain_says_if_a_control_without_a_teacher_does_as_well(claimed):
    mark = "not shown above a control without a teacher"
    assert mark not in BY_ID["teacher-fine"].evidence(claimed).marks
    as_good = context(results(changes={("control-no-teacher", SCENES.fine_probe): 0.30}), bench=bench())
    found = BY_ID["teacher-fine"].evidence(as_good)
    assert found.verdict == "supported" and mark in found.marks
    assert any("full - control-no-teacher is " in remark for remark in found.remarks)
    # The control says nothing of cells without a teacher, nor of a claim that is not supported.
    assert mark not in BY_ID["adds-high-order"].evidence(as_good).marks
    below = context(results(changes={("rank-3", SCENES.fine_probe): 0.5}), bench=bench())
    assert mark not in BY_ID["teacher-fine"].evidence(below).marks


def test_what_is_one_comparison_is_said_to_be_one(claimed):
    """Claims with the same decisive contrasts name the first of them, so that they are counted once."""
    first = {}
    for claim in CLAIMS:
        cells = tuple((one.quantity.cells, one.direction, one.unit) for one in claim.judge.contrasts)
        lines = [line for line in claim.evidence(claimed).shown if line.decisive]
        same = cells, claim.judge.rule, tuple((line.scores, line.effect.mean) for line in lines)
        assert claim.same_as == first.setdefault(same, claim.id).replace(claim.id, "")


def test_the_row_at_equal_time_has_the_ratio_of_costs_beside_it(claimed):
    marks = BY_ID["equal-compute"].evidence(claimed).marks
    assert any("a step takes 1.26 (1.26 to 1.26) times CLIP's on ViT-B-32" in mark for mark in marks)
    assert any("1.0 (30 epochs) and 1.0 (28 epochs) times CLIP's time on drc-tiny" in mark for mark in marks)


def test_the_worlds_hold_every_score_a_claim_uses():
    known = as_claimed("full")
    for claim in DIFFERENCES:
        for line in claim.evidence(context(results(seeds=2), bench=bench())).shown:
            assert set(line.scores) <= known.keys(), claim.id


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('contrasts = [{ of = "full", over = "clip", score = "T@9" }]', "claim a: unknown score 'T@9'"),
        ('contrasts = [{ of = "full", ovr = "clip", score = "T@1", label = "x" }]', "claim a: unknown keys: ovr"),
        ('contrasts = [{ of = "full", score = "T@1" }]', "claim a: .* needs a label"),
        ('contrasts = [{ special = "magic" }]', "claim a: unknown special contrast 'magic'"),
        ('contrasts = []\nwhy = ""', "claim a: unknown keys: why"),
        ("", "claim a: missing keys: contrasts"),
    ],
)
def test_a_wrong_entry_of_the_file_is_named(tmp_path, line, message):
    path = tmp_path / "claims.toml"
    path.write_text(f'[[claim]]\nid = "a"\nsays = ""\nwhere = ""\ntables = []\nrule = "all hold"\n{line}\n')
    with pytest.raises(ValueError, match=message):
        load_claims(path, PAPER.values, {})
