"""Small training runs as real processes, for tests of what survives a kill and of many processes."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Collection
from pathlib import Path

import numpy as np
import simplejpeg
from safetensors.torch import load_file

from dinorankclip.commands.train import parse
from dinorankclip.config import TrainSettings
from dinorankclip.validate import validated
from tests.systems import demand_posix

WORDS = ("red", "green", "blue", "round", "square", "tiny", "huge", "cat", "dog", "boat", "tree", "house")


def small_pairs(folder: Path, train: int = 96, val: int = 16) -> Path:
    """Random colour patches with random captions in the retrieval layout."""
    draw = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val), ("test", val)):
        (folder / split).mkdir(parents=True)
        (folder / split / "nshards.txt").write_text("1")
        with tarfile.open(folder / split / "0.tar", "w") as tar:
            for i in range(count):
                pixels = np.kron(draw.integers(0, 256, (4, 4, 3)), np.ones((12, 12, 1))).astype(np.uint8)
                lines = "\n".join(" ".join(draw.choice(WORDS, 5)) for _ in range(2))
                for name, data in ((f"{i:05d}.jpg", simplejpeg.encode_jpeg(pixels)), (f"{i:05d}.txt", lines.encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    (folder / "dataset_type.txt").write_text("retrieval")
    return folder


def command(data: Path, run: Path, *flags: str, processes: int = 1) -> list[str]:
    start = [sys.executable, "-m", "dinorankclip"]
    if processes > 1:
        # The lone -- keeps torchrun from taking our --run for its own --run-path.
        torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone", "-m", "--"]
        start = [sys.executable, *torchrun, "dinorankclip"]
    settings = ["--preset", "scenes", "--data", data, "--run", run, "--model.trunk", "drc-tiny", "--budget.batch", "16"]
    quick = ["--record.log-every", "1", "--record.save-every", "2", "--record.no-tensorboard", "--budget.threads", "1"]
    return [str(word) for word in [*start, "train", *settings, *quick, *flags]]


def settings_from(*flags: object) -> TrainSettings:
    """What `train` with these flags would train with."""
    return validated(parse([str(word) for word in flags])[0])


def run_to_end(words: list[str], timeout: float = 240) -> subprocess.CompletedProcess:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def logged(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []


def last_step(run: Path, earlier: Collection[str] = ()) -> int:
    """The last step in the log, apart from `earlier` lines of it; 0 without any."""
    steps = [0]
    for line in logged(run):
        if line in earlier:
            continue
        try:
            steps.append(json.loads(line)["step"])
        except ValueError:
            continue
    return max(steps)


def run_until(words: list[str], run: Path, step: int, how: int, timeout: float = 240) -> int:
    """Start, wait until this process has logged `step`, send `how`; returns the exit status.

    A log that a killed run left may be past that step: its lines, with their times, do not come again.
    SIGKILL goes to the whole tree at once, as when a machine dies: torchrun puts its workers in sessions of their own.
    """
    demand_posix()
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    earlier = frozenset(logged(run))
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    deadline = time.monotonic() + timeout
    while process.poll() is None and last_step(run, earlier) < step:
        assert time.monotonic() < deadline, "the run did not get there in time"
        time.sleep(0.005)
    if process.poll() is None:
        for pid in family(process.pid) if how == signal.SIGKILL else [process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
    return process.wait(timeout)


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found.extend(children.get(one, []))
    return found


def weights(run: Path) -> dict:
    return load_file(run / "checkpoints" / "last" / "model.safetensors")
