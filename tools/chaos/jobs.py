"""The work that the campaign disturbs: each job is a command on tiny data, and a digest of what it leaves behind.

A stage holds the results of undisturbed jobs. A trial copies what its job needs from there, so jobs start from known
folders; pairs lie in the stage alone, outside of what a fault can touch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from dinorankclip.commands.entry import main
from dinorankclip.data.scenes.make import make_scenes
from dinorankclip.search.index import PhotoIndex
from tests.train.running import small_pairs
from tools.chaos import children, serving, study

STEPS = 6
SCENES = {"train": 4, "val": 2, "test": 2, "kinds_train": 2, "kinds_test": 2, "fine_train": 2, "fine_test": 2}


@dataclass
class Job:
    """Names a piece of work: its command, the folders of the stage that it needs, and a digest of its result."""

    name: str
    work: Callable[[], object]
    result: Callable[[Path], str]
    needs: tuple[str, ...] = ()
    makes: str = ""  # a folder that is kept in the stage
    events: int = 0  # changes of files that the undisturbed job makes
    seconds: float = 0.0
    expected: str = ""
    once: bool = False  # the command refuses to make again what is there
    trains: bool = False  # the result holds trained weights


def train_words(pairs: Path, *more: str) -> list[str]:
    return [
        "train", "--preset", "scenes", "--method", "clip", "--data", str(pairs), "--run", "run", "--model.trunk",
        "drc-tiny", "--model.image-size", "32", "--budget.batch", "8", "--budget.steps", str(STEPS), "--budget.threads",
        "1", "--reading.workers", "0", "--record.log-every", "1", "--record.save-every", "2", "--record.keep", "3",
        "--record.no-tensorboard", *more,
    ]  # fmt: skip


def make_jobs(pairs: Path) -> dict[str, Job]:
    """Return all jobs by name, in an order in which each finds what it needs."""
    run, data = ("run",), str(pairs)
    cache = ["teacher", "cache", "--data", data, "--teacher", "random-vit", "--input-size", "32", "--out", "cache"]
    jobs = [
        Job("train", lambda: train(pairs), run_digest, makes="run", trains=True),
        Job("score", lambda: main(["score", "run", "--sets", data, "--metrics", "retrieval", "--no-pictures"]),
            scores_digest, run, "run"),
        Job("cache", lambda: main(cache), lambda folder: tree(folder / "cache"), (), "cache"),
        Job("embed", lambda: main(["embed", "run", "--data", data, "--split", "val", "--out", "embedded"]),
            lambda folder: tree(folder / "embedded"), run, "embedded"),
        Job("export", lambda: main(["export", "run", "--out", "exported", "--replace"]),
            lambda folder: tree(folder / "exported", without=("README.md",)), run, "exported"),
        Job("index", lambda: main(["search", "run", "--images", "photos", "a red cat"]), index_digest,
            ("run", "photos"), "photos"),
        Job("make", lambda: make_scenes(Path("made"), size=16, workers=1, **SCENES),
            lambda folder: tree(folder / "made")),
        Job("pack", lambda: main(["data", "pack", data, "packed", "--to", "shards", "--shard-size", "20"]),
            lambda folder: tree(folder / "packed"), once=True),
        Job("report", lambda: main(["report", "run"]), page_digest, run),
        Job("study", lambda: study.work_on(pairs), study.digest, trains=True),
        Job("serve", serving.serve, serving.answers_digest, ("run", "photos")),
        Job("explore", lambda: serving.explore(pairs), serving.answers_digest, run),
    ]  # fmt: skip
    return {job.name: job for job in jobs}


def train(pairs: Path, *more: str) -> None:
    """Train without the closing report, which is a job of its own."""
    from dinorankclip.commands import report
    from dinorankclip.commands import train as command

    report.write_run = lambda *_: None  # type: ignore[assignment]
    command._close = lambda folder: None  # type: ignore[assignment]
    main(train_words(pairs, *more))


def tree(folder: Path, without: tuple[str, ...] = ()) -> str:
    """Return a digest of all files below a folder, hidden ones included; locks are gone by then."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in without):
        digest.update(f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def run_digest(folder: Path) -> str:
    """Return a digest of the trained weights, the optimiser, and the scores."""
    last, digest = folder / "run" / "checkpoints" / "last", hashlib.sha256()
    for name in ("model.json", "model.safetensors", "training.safetensors"):
        digest.update((last / name).read_bytes())
    digest.update(json.dumps(json.loads((folder / "run" / "scores.json").read_text())["scores"]).encode())
    leftovers = [path.name for path in (folder / "run").rglob(".*")]
    return digest.hexdigest() + "".join(leftovers)


def scores_digest(folder: Path) -> str:
    return json.dumps(json.loads((folder / "run" / "scores.json").read_text())["sets"], sort_keys=True)


def index_digest(folder: Path) -> str:
    paths = [path for path in (folder / "photos" / ".dinorankclip").glob("*.npz") if path.name.count(".") == 1]
    index = PhotoIndex.load(paths[0])
    return f"{index.names} {hashlib.sha256(index.rows.tobytes()).hexdigest()} {index.causes.tolist()}"


def page_digest(folder: Path) -> str:
    text = (folder / "run" / "report.html").read_text(encoding="utf-8")
    return f"whole: {text.rstrip().endswith('</html>')}"


class Stage:
    """Makes the undisturbed results in a folder, and lays out copies of them for trials."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pairs = folder, small_pairs(folder / "pairs", train=32, val=8)
        self.kept = folder / "kept"
        self.kept.mkdir()
        self._photos(self.kept / "photos")
        self.jobs = make_jobs(self.pairs)
        for job in self.jobs.values():
            self._measure(job)
        self._part_of_a_run()

    def _photos(self, folder: Path) -> None:
        folder.mkdir()
        draws = np.random.default_rng(0)
        for number in range(6):
            Image.fromarray(draws.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / f"{number}.png")

    def _measure(self, job: Job) -> None:
        place, events = self.folder / f"first-{job.name}", self.folder / f"{job.name}.events"
        self.lay_out(place, job.needs)
        begun = time.monotonic()
        outcome = children.run(job.work, place, children.count_events(events))
        job.seconds = time.monotonic() - begun
        if outcome.status != 0:
            raise RuntimeError(f"the undisturbed job {job.name} failed:\n{outcome.text}")
        job.events = len(events.read_text().splitlines())
        job.expected = job.result(place)
        if job.makes:
            shutil.rmtree(self.kept / job.makes, ignore_errors=True)
            shutil.copytree(place / job.makes, self.kept / job.makes, symlinks=True)
        if job.name == "score":
            shutil.copytree(place / "built", self.kept / "built", symlinks=True)
        shutil.rmtree(place)

    def _part_of_a_run(self) -> None:
        """Make `part`: the run as a kill before its last checkpoint leaves it."""
        part = self.kept / "part"
        shutil.copytree(self.kept / "run", part, symlinks=True)
        shutil.rmtree(part / "checkpoints" / f"step-{STEPS}")
        for name in ("last", "best"):
            (part / "checkpoints" / name).unlink(missing_ok=True)
        (part / "checkpoints" / "last").symlink_to(f"step-{STEPS - 2}")
        for name in ("scores.json", "scores_items.npz", "ended.json"):
            (part / name).unlink(missing_ok=True)

    def lay_out(self, place: Path, needs: tuple[str, ...]) -> Path:
        """Make the folder of a trial with copies of what the stage keeps."""
        place.mkdir()
        for name in needs:
            target = place / ("run" if name == "part" else name)
            shutil.copytree(self.kept / name, target, symlinks=True)
        return place
