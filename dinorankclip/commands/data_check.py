"""`dinorankclip data check`: examine pairs; find captions at the wrong photo, and photos that are in two parts."""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dinorankclip.commands.shared import check_at_least, load_quietly
from dinorankclip.config import CheckingSettings, FindingSettings
from dinorankclip.types import Finding

if TYPE_CHECKING:
    from dinorankclip.models.loaded import LoadedModel

MISMATCHED, DUPLICATES = "mismatched.csv", "duplicates.csv"
TELLS_APART = 0.8  # below this share of right pairs preferred to random pairs, a model's suspects mean little
SHOWN = 5  # of each kind on the screen; the file has all


def check(
    where: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IN")],
    mismatched: bool = False,
    duplicates: bool = False,
    model: str = "starter",
    out: Path = Path("data-check"),
    samples: int = 2000,
    device: str = "auto",
    reading: CheckingSettings = CheckingSettings(),  # noqa: B008 (frozen)
) -> None:
    """Examine pairs as `doctor` does; also find captions at the wrong photo, and photos that are in two parts.

    Examples:
      dinorankclip data check photos.csv --duplicates
      dinorankclip data check photos.csv --mismatched
      dinorankclip data check photos.csv --mismatched --model runs/mine

    Suspect captions fit their photo no better than random pairs do, by the model's measure, which may err: look at
    them, the worst come first. Duplicates are copies, also re-encoded or resized; crops and mirrored copies are not
    found. Exit status 1 if there is a problem.

    Args:
        where: Anything that --data of train takes: shards, table, folder, scenes.
        mismatched: List captions that seem to belong to another photo, in OUT/mismatched.csv.
        duplicates: List photos of one part that are also in another, in OUT/duplicates.csv.
        model: The model that judges captions: a run, an exported folder, open_clip:NAME:FILE,
            transformers:FOLDER, or starter.
        out: The folder of the lists.
        samples: Samples of each part to decode, at most, for the examination.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
        reading: How the pairs are found and divided. More damaged pairs than max-damaged are a problem.
    """
    from dinorankclip.commands.doctor import print_finding
    from dinorankclip.data.inspect import examine_data

    check_at_least(1, samples=samples)
    problems = 0
    findings: Iterator[Finding] = examine_data(where, reading, samples)
    if duplicates:
        findings = itertools.chain(findings, find_duplicates(where, reading, out))
    if mismatched:
        findings = itertools.chain(findings, find_mismatched(where, reading, model, device, out))
    for finding in findings:
        print_finding(finding)
        problems += finding.level == "problem"
    if problems:
        sys.exit(1)


def find_duplicates(where: str, reading: FindingSettings, out: Path) -> Iterator[Finding]:
    """Yield a finding for each two parts, and write the list of duplicates."""
    from tqdm import tqdm

    from dinorankclip.data.duplicates import duplicates, looks_of
    from dinorankclip.data.open_data import open_stored, splits_of

    parts = splits_of(where, reading)
    parts = ("train", "val") if parts in (("all",), ("train",)) else parts
    looks = {}
    for part in parts:
        source = open_stored(where, reading, part)
        with tqdm(total=len(source), desc=f"{part} photos", unit="photo", leave=False, disable=None) as bar:
            looks[part] = looks_of(source, reading.max_pixels, bar.update)
    rows: list[Sequence[Any]] = []
    for first, second in itertools.combinations(parts, 2):
        found = list(duplicates(looks[first], looks[second]))
        rows += [(second, one.key, first, one.other, one.bits, f"{one.grey:.1f}") for one in found]
        of = f"{len(found)} of {len(looks[second].keys)} photos of {second}"
        if not found:
            yield Finding("fine", f"no photo of {second} is also in {first} ({len(looks[first].keys)} photos)")
            continue
        shown = ", ".join(f"{one.key} = {one.other}" for one in found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
        advice = f"take them out of {first}, or scores of {second} are too good"
        if splits_of(where, reading) == ("all",):
            advice += "; a column that groups copies (--reading.group-column) keeps them on one side"
        yield Finding("problem", f"{of} are also in {first}: {shown}", advice)
    path = write_rows(out / DUPLICATES, ("part", "key", "other part", "other key", "bits", "grey levels"), rows)
    yield Finding("fine", f"list of duplicates: {path}")


def find_mismatched(where: str, reading: FindingSettings, model: str, device: str, out: Path) -> Iterator[Finding]:
    """Yield a finding for each part, and write the list of suspect captions, the worst of each part first."""
    from dinorankclip.data.open_data import splits_of
    from dinorankclip.evaluate.mismatched import FEWEST

    loaded, rows = load_quietly(model, device), []
    for part in splits_of(where, reading):
        keys, captions, fit = fit_of_part(where, reading, part, loaded)
        if fit is None:
            yield Finding("note", f"{part}: {len(keys)} photos are too few to compare captions with; give {FEWEST}")
            continue
        share = fit.share_above()
        suspects, right = fit.suspects(), 1 - share.mean()
        for place in suspects:
            key, other = keys[captions[place][0]], keys[fit.best_other[place]]
            numbers = f"{fit.cosine[place]:.4f}", f"{fit.fit[place]:.3f}", f"{share[place]:.3f}", fit.better[place]
            rows.append((part, key, captions[place][1], *numbers, len(keys), other))
        name = "" if part == "all" else f"{part}: "
        yield Finding(
            "note" if len(suspects) else "fine",
            f"{name}at most about {len(suspects)} of {len(captions)} captions seem to belong to another photo; "
            f"{loaded.name} prefers the given pair to a random one in {100 * right:.0f} % of cases",
            "this model knows these photos too little to judge captions: use a better one" if right < TELLS_APART
            else "look at the worst, and correct them or take them out" if len(suspects) else "",
        )  # fmt: skip
    header = ("part", "key", "caption", "cosine", "fit", "random pairs that fit better", "photos that fit better")
    path = write_rows(out / MISMATCHED, (*header, "photos", "photo that fits best"), rows)
    yield Finding("fine", f"list of suspect captions: {path}")


def fit_of_part(where: str, reading: FindingSettings, part: str, model: LoadedModel) -> tuple[list[str], list, Any]:
    """Return keys of the usable photos, (place of photo, caption) of all captions, and how they fit (None: too few)."""
    from dinorankclip.data.benchmark_sets import source_digest
    from dinorankclip.data.open_data import open_stored
    from dinorankclip.evaluate.embeddings import EmbeddingStore
    from dinorankclip.evaluate.mismatched import FEWEST, fit_of_pairs

    source = open_stored(where, reading, part)
    source.fingerprint = source_digest(source)
    store = EmbeddingStore()
    images = store.images(model, source, label=f"{part} photos", max_pixels=reading.max_pixels)
    keys = [source.key(int(index)) for index in images.indices]
    captions = [(n, text) for n, index in enumerate(images.indices) for text in source.captions(int(index))]
    if len(keys) < FEWEST:
        return keys, captions, None
    texts = store.texts(model, [text for _, text in captions], label=f"{part} captions")
    places = [n for n, _ in captions]
    return keys, captions, fit_of_pairs(images.rows["embedding"].numpy(), texts.numpy(), places)


def write_rows(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path
