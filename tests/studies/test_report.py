"""The command on a study that nobody ran and on a run: files, what lacks, traces, nothing fetched."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from dinorankclip.commands.entry import main
from dinorankclip.commands.report import folder_of
from dinorankclip.config import TrainSettings, as_dict
from dinorankclip.methods import LABEL
from dinorankclip.report.figures import Drawn, new_figure
from dinorankclip_studies.material import open_material
from dinorankclip_studies.papers.dinorankclip.plans import PICTURED, STUDIES
from dinorankclip_studies.results import Results
from dinorankclip_studies.study_report import MissingFigure, write_docs
from tests.report.test_html import EVIL, Reader, fetches
from tests.studies.synthetic import TEACHER, made_up

MOST_BYTES = 6_000_000  # a page beyond this is slow to open


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report of the full study without the cells of one table, and what goes into the docs."""
    root = tmp_path_factory.mktemp("report")
    study = STUDIES["full"]()
    (root / "study").mkdir()
    made_up(study, without=("full-resnet", "full-mobilenet")).save(root / "study" / "results.json")
    arguments = ["report", str(root / "study"), "--out", str(root / "out"), "--docs", str(root / "docs")]
    main([*arguments, "--bench", str(root / "no-bench")])
    return root


def test_files_of_a_study(written):
    out, study = written / "out", STUDIES["full"]()
    names = {experiment.name for experiment in study.experiments}
    for ending in ("md", "tex", "csv", "trace.json"):
        assert names <= {path.name.removesuffix(f".{ending}") for path in (out / "tables").glob(f"*.{ending}")}
    assert {"overview.png", "overview.svg", "order-curves.png", "data-scaling.svg", "cone-separation.png"} <= {
        path.name for path in (out / "figures").iterdir()
    }
    assert all(path.stat().st_size > 1000 for path in (out / "figures").iterdir())
    assert (out / "claims.md").read_text().startswith("# ")


def test_the_page_stands_alone(written):
    text = (written / "out" / "report.html").read_text()
    page = Reader(text)
    assert page.open == [] and fetches(text) == []
    assert 100_000 < len(text.encode()) < MOST_BYTES
    images = [a["src"] for tag, a in page.tags if tag == "img"]
    assert len(images) >= 4 and all(source.startswith("data:image/") for source in images)
    anchors = {a["id"] for _, a in page.tags if "id" in a}
    assert all(a["href"][1:] in anchors for tag, a in page.tags if tag == "a")
    for experiment in STUDIES["full"]().experiments:
        assert experiment.title in page.text
    assert LABEL in page.text and TEACHER in page.text and "order 3 inert" in page.text


def test_a_partly_finished_study_says_what_is_unfinished(written):
    page = Reader((written / "out" / "report.html").read_text())
    planned = sum(STUDIES["full"]().seeds.values())
    assert "Unfinished runs" in page.text and f"6 of {planned} runs are not finished" in page.text
    assert "Left out: " in page.text and "not kept here" in page.text
    material = open_material(written / "study")
    assert material.unfinished == {"full-resnet": [0, 1, 2], "full-mobilenet": [0, 1, 2]}
    row = next(line for line in (written / "out/tables/students.md").read_text().splitlines() if "| ResNet" in line)
    assert row.count("–") >= 6


def test_every_row_of_the_page_has_its_trace(written):
    page = Reader((written / "out" / "report.html").read_text())
    results = Results.load(written / "study")
    traces = sum(tag == "summary" for tag, _ in page.tags)
    assert traces >= len(STUDIES["full"]().experiments)
    run = results.of("rank-2")[1]
    assert run.folder in page.text and "loss.order: 3 → 2" in page.text and "abc123" in page.text


def test_docs_get_small_copies(written):
    folder = written / "docs" / "study" / "full"
    assert (written / "docs" / "claims.md").read_text().startswith("# ")
    assert Results.load(folder) == Results.load(written / "study")
    text = (folder / "README.md").read_text()
    assert (
        "![Scores over the order](figures/order-curves.png)" in text and (folder / "figures/order-curves.png").is_file()
    )
    endings = {path.name.partition(".")[2] for path in (folder / "tables").iterdir()}
    assert endings == {"md", "trace.json"}
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 3_000_000
    # A report can be written again from the copies alone.
    assert open_material(folder).results.cells() == Results.load(folder).cells()


def test_rules_that_tables_share_are_told_once_on_a_page_and_beside_every_table_that_stands_alone(written):
    page, html = written / "docs/study/full/README.md", Reader((written / "out" / "report.html").read_text()).text
    rule = "Means over n seeds ± half of the 95 % t-interval"
    assert page.read_text().count(rule) == html.count(rule) == 1
    for ending in ("md", "tex"):
        alone = (written / "out" / "tables" / f"components.{ending}").read_text()
        assert "Means over n seeds" in alone and "cumulative" in alone and "Teacher of" in alone
    assert page.read_text().index(rule) < page.read_text().index("## Main comparison")
    assert "cumulative" in page.read_text() and "cumulative" in html


def dead_links(folder: Path) -> list[str]:
    """Links of Markdown pages to files that are not there."""
    links = [
        (page, target)
        for page in folder.rglob("*.md")
        for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text())
        if "://" not in target
    ]
    assert links
    return [f"{page.name}: {target}" for page, target in links if not (page.parent / target).is_file()]


def test_links_lead_somewhere(written, tmp_path):
    # Of two studies: the second has not all of the tables that claims name.
    shutil.copytree(written / "docs", tmp_path / "docs")
    photos = STUDIES["flickr8k"]()
    (tmp_path / "photos").mkdir()
    made_up(photos).save(tmp_path / "photos" / "results.json")
    material = open_material(tmp_path / "photos", tmp_path / "no-bench")
    write_docs(material, [], tmp_path / "docs")
    assert "study/flickr8k/tables/main.md" in (tmp_path / "docs" / "claims.md").read_text()
    assert dead_links(tmp_path / "docs") == [] and dead_links(written / "out") == []


def test_the_small_study_has_no_say_in_the_docs_claims(tmp_path):
    study = STUDIES["small"]()
    folder = tmp_path / "study-small"
    folder.mkdir()
    made_up(study, without=tuple(cell.name for cell in study.cells[1:])).save(folder / "results.json")
    missing = MissingFigure("data-scaling", "Data scaling", "needs more runs")
    assert write_docs(open_material(folder), [missing], tmp_path / "docs") == tmp_path / "docs" / "study" / "small"
    assert not (tmp_path / "docs" / "claims.md").exists()
    assert "## Data scaling\n\nLeft out: needs more runs.\n" in (tmp_path / "docs/study/small/README.md").read_text()


def test_pictures_stay_without_their_models_as_long_as_the_runs_are_the_same(tmp_path):
    study = STUDIES["small"]()
    folder, docs = tmp_path / "study-small", tmp_path / "docs"
    folder.mkdir()
    made_up(study, seeds=1).save(folder / "results.json")
    material = open_material(folder)
    drawn_from = material.pictured
    assert len(drawn_from.split()) == len(PICTURED)
    points = Drawn("plane", "Plane", "Points → μ.", Image.new("RGB", (8, 8)), drawn_from=drawn_from)
    curve = Drawn("curve", "Curve", "A line, λ.", new_figure(3, 2), drawn_from=drawn_from)
    gone = [MissingFigure("plane", "Plane", "needs a model"), MissingFigure("curve", "Curve", "needs a model")]
    out = write_docs(material, [points, curve], docs)
    before = {path.name: path.read_bytes() for path in (out / "figures").iterdir()}
    write_docs(material, gone, docs)
    text = (out / "README.md").read_text()
    assert "![Plane](figures/plane.png)\n\nPoints → μ. Drawn earlier" in text and "A line, λ. Drawn earlier" in text
    assert {path.name: path.read_bytes() for path in (out / "figures").iterdir()} == before
    # A run of other settings has another key.
    others = replace(material, results=replace(material.results, runs=tuple(
        replace(run, key="other") if run.cell == "full" else run for run in material.results.runs
    )))  # fmt: skip
    write_docs(others, gone, docs)
    assert (out / "README.md").read_text().count("Left out: needs a model.") == 2


@pytest.mark.parametrize(("name", "ours"), [("small", True), ("flickr8k", False)])
def test_photos_of_others_are_not_passed_on(tmp_path, name, ours):
    study = STUDIES[name]()
    folder = tmp_path / f"study-{name}"
    folder.mkdir()
    made_up(study, seeds=1, without=tuple(cell.name for cell in study.cells[1:])).save(folder / "results.json")
    photos = Drawn("retrieval", "Retrieval", "Photos.", Image.new("RGB", (8, 8)), vector=False, shows_items=True)
    lines = Drawn("plane", "Plane", "Points.", Image.new("RGB", (8, 8)), vector=False)
    out = write_docs(open_material(folder), [photos, lines], tmp_path / "docs")
    assert (out / "figures" / "plane.png").is_file() and (out / "figures" / "retrieval.png").exists() == ours
    assert ("Left out: it shows photos and captions" in (out / "README.md").read_text()) != ours


def test_report_of_a_run(tmp_path, kept_folder):
    run = tmp_path / "run"
    shutil.copytree(kept_folder / "full", run)
    settings = as_dict(TrainSettings()) | {"method": "rank", "data": f"photos {EVIL}"}
    (run / "config.json").write_text(json.dumps(settings))
    lines = [
        {"step": 10, "epoch": 1.0, "loss": 4.0, "loss/contrastive": 3.9, "loss/rank_in": 0.1, "gate2_image": 0.05,
         "gate2_text": 0.05, "spread2_image": 5e-4, "spread2_text": 2e-4},
        {"step": 10, "val/i2t R@1": 0.1, "val/t2i R@1": 0.2, "val/mean R@1": 0.15, "val/chance R@1": 0.01},
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    score = {"value": 0.25, "low": 0.2, "high": 0.31, "n": 40, "unit": "share", "chance": 0.1}
    sets = {f"set {EVIL}": {"scores": {"T@1": score, "cone separation": {"value": 61.5, "n": 40, "unit": "degrees"}}}}
    (run / "scores.json").write_text(json.dumps({"step": 10, "scores": {"val/i2t R@1": 0.1}, "sets": sets}))
    spread = dict.fromkeys(("mean", "5 %", "median", "95 %", "max"), 1.25)
    branch = {"angle": spread, "bound": spread, "gate": spread, "share at ratio >= 1": 0.5}
    (run / "fusion.json").write_text(json.dumps({"start": {"image": branch}, "end": {"image": branch}}))
    main(["report", str(run)])
    text = (run / "report.html").read_text()
    page = Reader(text)
    assert page.open == [] and fetches(text) == [] and EVIL in page.text
    assert "inert" in page.text and "50.0 % of items at ratio ≥ 1" in page.text
    assert "20.00 % … 31.00 %" in page.text and "61.50°" in page.text
    assert sum(tag == "img" for tag, _ in page.tags) == 3


def test_mistakes_are_answered(tmp_path, kept_folder, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing-yet").mkdir()
    Results("small", ()).save(tmp_path / "nothing-yet" / "results.json")
    for arguments, text in (
        (["empty"], "neither a run"),
        (["nowhere"], "neither a run"),
        (["full"], "study full has no results yet: dinorankclip study run full"),
        (["nothing-yet"], "study small has no results yet: dinorankclip study run small"),
        ([str(kept_folder / "clip"), "--docs", "docs"], "--docs is for studies"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["report", *arguments])
        assert end.value.code == 2 and text in capsys.readouterr().err
    assert folder_of("full") == Path("full")
    (tmp_path / "runs" / "study-full").mkdir(parents=True)
    assert folder_of("full") == Path("runs/study-full")


def test_help_is_quick_and_shows_an_example():
    code = "import sys; from dinorankclip.commands.entry import main\n"
    code += "try:\n  main(['report', '--help'])\nexcept SystemExit: pass\n"
    code += "print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    reported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "dinorankclip report runs/first" in reported and reported.endswith("False False\n")
