"""Damaged bytes in every kind of file that the project writes: refused by name, healed, or without effect."""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dinorankclip.commands.entry import main
from dinorankclip.config import FindingSettings
from dinorankclip.data.open_data import open_stored
from dinorankclip.models.loaded import load_model
from dinorankclip.teachers.cache_read import TeacherCache
from dinorankclip.types import View
from tools.chaos import children
from tools.chaos.children import Lost
from tools.chaos.kinds import Kind, Trial


@dataclass(frozen=True)
class Target:
    """Names files that are damaged, and the reader that must notice: a function that prints what it read."""

    needs: tuple[str, ...]
    files: tuple[str, ...]  # patterns below the folder of the trial
    reader: Callable[[Path], object]
    result: Callable[[Path, str], str]  # of the folder and the printed text


def damaged(data: bytes, draws: random.Random) -> bytes:
    """Flip a bit, replace a byte, cut the end, or replace a stretch by zeros."""
    if not data:
        return b"\0"
    place, how = draws.randrange(len(data)), draws.random()
    if how < 0.6:
        return data[:place] + bytes([data[place] ^ (1 << draws.randrange(8))]) + data[place + 1 :]
    if how < 0.8:
        return data[:place] + bytes([draws.randrange(256)]) + data[place + 1 :]
    if how < 0.9:
        return data[:place]
    return data[:place] + bytes(min(64, len(data) - place)) + data[place + 64 :]


def _printed(folder: Path, text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith("read: "))


def _read_model(pairs: Path) -> None:
    model = load_model("exported", device="cpu")
    rows = model.encode_text(["a red cat"])
    print("read:", model.identity, hashlib.sha256(rows.numpy().tobytes()).hexdigest())


def _read_cache(pairs: Path) -> None:
    source = open_stored(str(pairs), FindingSettings(), "train")
    cache = TeacherCache("cache", "train", compare_grid=1)
    keys = [source.key(index) for index in range(len(source))]
    features = cache.images(keys, [View(0, 0, 1, 1, False)] * len(keys))
    digest = hashlib.sha256()
    for name in sorted(features):
        digest.update(features[name].contiguous().numpy().tobytes())
    print("read:", digest.hexdigest(), cache.identity, cache.check_data(source))


def _read_scores(pairs: Path) -> None:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        main(["compare", "run", "run"])
    print("\n".join(f"read: {line}" for line in text.getvalue().splitlines()))


def _job(name: str) -> Callable[[Path], object]:
    def reader(pairs: Path) -> object:
        from tools.chaos.jobs import make_jobs

        return make_jobs(pairs)[name].work()

    return reader


def targets(pairs: Path) -> dict[str, Target]:
    from tools.chaos.jobs import index_digest, run_digest, scores_digest, tree

    def of_run(folder: Path, text: str) -> str:
        return run_digest(folder)

    def of_scores(folder: Path, text: str) -> str:
        return scores_digest(folder)

    resume, again, old = _job("train"), _job("score"), "run/checkpoints/step-4"
    log = ("run/config.json", "run/environment.json", "run/metrics.jsonl")
    return {
        "model of a checkpoint": Target(("part",), (f"{old}/model.*",), resume, of_run),
        "state of a checkpoint": Target(("part",), (f"{old}/training.*", f"{old}/checksums*"), resume, of_run),
        "settings and log": Target(("part",), log, resume, of_run),
        "scores": Target(("run",), ("run/scores*",), _read_scores, _printed),
        "export": Target(("exported",), ("exported/*",), _read_model, _printed),
        "teacher cache": Target(("cache",), ("cache/*",), _read_cache, _printed),
        "embeddings": Target(("run", "embedded"), ("embedded/*",), _job("embed"), lambda f, _: tree(f / "embedded")),
        "photo index": Target(
            ("run", "photos"), ("photos/.dinorankclip/*",), _job("index"), lambda f, _: index_digest(f)
        ),
        "rows for scoring": Target(("run", "built"), ("built/embeddings/**/*",), again, of_scores),
        "index of shards": Target(("run", "built"), ("built/index/*",), again, of_scores),
    }


def kinds(pairs: Path) -> dict[str, Kind]:
    expected: dict[str, str] = {}
    return {f"damaged bytes: {name}": _kind(name, target, pairs, expected) for name, target in targets(pairs).items()}


def _kind(name: str, target: Target, pairs: Path, expected: dict[str, str]) -> Kind:
    def kind(trial: Trial) -> None:
        if name not in expected:
            place = trial.stage.lay_out(trial.folder.with_name(f"undamaged {name}"), target.needs)
            outcome = children.run(lambda: target.reader(pairs), place)
            if outcome.status != 0:
                raise Lost(f"the reader refuses undamaged files:\n{outcome.text[-2000:]}")
            expected[name] = target.result(place, outcome.text)
            shutil.rmtree(place)
        folder = trial.stage.lay_out(trial.folder, target.needs)
        files = sorted({path for pattern in target.files for path in folder.glob(pattern) if path.is_file()})
        path = trial.draws.choice(files)
        before = path.read_bytes()
        after = damaged(before, trial.draws)
        path.write_bytes(after)
        trial.struck += after != before
        outcome = children.run(lambda: target.reader(pairs), folder)
        outcome.demand_words()
        where = f"{path.relative_to(folder)} ({len(before)} bytes)"
        if outcome.status != 0:
            named = path.name in outcome.text or path.parent.name in outcome.text
            if not named and after != before:
                raise Lost(f"{where} is refused without its name:\n{outcome.text[-1500:]}")
            return
        found = target.result(folder, outcome.text)
        if found != expected[name]:
            raise Lost(f"{where} damaged: silently other: {found[:300]} instead of {expected[name][:300]}")

    return kind
