"""Verdicts on the paper's claims: of one study beside its report, of all committed studies in docs/claims.md."""

from __future__ import annotations

from pathlib import Path

from dinorankclip.study.bench_figures import load_bench
from dinorankclip.study.results import RESULTS, Results
from dinorankclip.writeup.claims_page import claims_markdown
from dinorankclip.writeup.study_material import StudyMaterial

JUDGING = ("full", "flickr8k")  # studies large enough for verdicts in the docs, in the order of the page


def own_claims(material: StudyMaterial) -> str:
    """By this study alone; tables are linked as they lie beside the report."""
    bench = load_bench(material.bench)
    return claims_markdown(
        [material.results], bench, machine=machine_of(material), link=lambda study, name: f"tables/{name}.md"
    )


def all_claims(docs: Path, bench: Path, machine: str) -> str:
    """By every judging study whose results are committed below `docs`."""
    paths = [docs / "study" / name / RESULTS for name in JUDGING]
    return claims_markdown([Results.load(path) for path in paths if path.is_file()], load_bench(bench), machine=machine)


def machine_of(material: StudyMaterial) -> str:
    """The machine that most runs were made on; empty for a copy without run folders."""
    found = material.environments()
    if not found:
        return ""
    about = found[0][0]
    gpus = ", ".join(about["gpus"]) or "no GPU"
    return f"{about['system']}, {about['cores']} cores, {about['threads']} thread(s) a run, {gpus}"
