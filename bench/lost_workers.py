"""Kills a worker in the middle of `embed`, of `teacher cache` and of a study, and compares the bytes with one process.

    python -m bench.lost_workers [--only embed cache study] [--items 640]
    python -m bench.lost_workers page --folder FOLDER …      # the dated record of these folders' rows

Runners: two Ray nodes of one core each on this machine, one of them killed; two ranks of torchrun, one killed and the
command run again; two elements of submitit's local executor, one killed. The model has random weights, since bytes are
compared and not quality. Each line has the wall-clock, the core-seconds of all workers, and the account of the call.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PART = 64  # items of a piece
PACE = float(os.environ.get("PACE", "0"))  # seconds that each piece takes besides its work
STUDY = """
name = "lost"
title = "two cells"
seeds = 2
[scenes]
train = 64
val = 16
test = 16
classes = false
[settings]
budget.batch = 16
budget.epochs = 3
budget.threads = 1
model.trunk = "drc-tiny"
record.tensorboard = false
record.save_every = 4
[cells.clip]
method = "clip"
[cells.rank]
method = "rank"
changes = { "loss.order" = 2 }
"""


def open_embed(settings: dict[str, Any]) -> Any:
    from dinorankclip.commands.embed import open_work

    return _paced(open_work(settings))


def open_cache(settings: dict[str, Any]) -> Any:
    from dinorankclip.teachers.cache_request import open_work

    return _paced(open_work(settings))


def _paced(pieces: Any) -> Any:
    """Let each piece take PACE seconds more, so that a kill finds workers in the middle of a piece."""
    make = pieces.make

    def slow(number: int, progress: Callable[[float], object]) -> None:
        time.sleep(PACE)
        make(number, progress)

    pieces.make = slow
    return pieces


def work(kind: str, out: str, runner: list[str]) -> None:
    """Make one folder, in a process of its own: what the command does, with smaller pieces."""
    from dinorankclip import distributed
    from dinorankclip.pieces.contract import RaySettings, SlurmSettings, Where, Work
    from dinorankclip.pieces.run import make_pieces

    on, address = (*runner, None, None)[:2]
    distributed.join("cpu")
    where = Where(on or "here", 2, RaySettings(address), SlurmSettings(cluster="local"))  # type: ignore[arg-type]
    reading = {"image_column": "image"}
    if kind == "embed":
        settings = {
            "model": "model", "out": out, "images": None, "captions": None, "data": "pairs", "split": "train",
            "half": False, "device": "cpu", "part": PART, "reading": reading,
        }  # fmt: skip
        pieces = open_embed(settings)
        distributed.leader_first(lambda: pieces.lead({}))
        account = make_pieces(pieces, where, Work("bench.lost_workers:open_embed", settings, "cpu"), Path(out))
        if pieces.folder is not None and not pieces.folder.complete:
            pieces.folder.finish()
    else:
        spec = {"data": "pairs", "teacher": "efficientnet-lite0", "input_size": 64, "split": ["train"]}
        layout = {"keep": "gram", "coding": "8bit", "rows": PART, "captions": PART}
        settings = {"out": out, "spec": spec | {"layout": layout}, "reading": reading, "device": "cpu"}
        builder = open_cache(settings)
        builder.finished(where, Work("bench.lost_workers:open_cache", settings, "cpu"))
        account = builder.account
    if distributed.world().leads:
        print("account:", account, flush=True)
    distributed.leave()


def started(kind: str, out: str, *runner: str, ranks: int = 1) -> subprocess.Popen:
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone"] if ranks > 1 else []
    command = [sys.executable, *torchrun, "-m", "--" if torchrun else "bench.lost_workers"]
    command += ["bench.lost_workers"] if torchrun else []
    if kind == "study":
        command = [sys.executable, "-m", "dinorankclip", "study", "run", "lost.toml", "--folder", out, *runner]
        return _process(command)
    return _process([*command, "work", kind, out, *runner])


def _process(command: list[str]) -> subprocess.Popen:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen, begin: float) -> dict[str, Any]:
    text = process.communicate()[0]
    lines = [line for line in text.splitlines() if line.startswith(("account:", "study: "))]
    seconds = round(time.monotonic() - begin, 1)
    return {"status": process.returncode, "seconds": seconds, "account": lines[-1:], "tail": text[-1500:]}


def digest_of(kind: str, out: str) -> str:
    """Return a digest of all that was made; of a study: of its runs' scores."""
    if kind == "study":
        from dinorankclip_studies.results import Results

        runs = Results.load(Path(out, "results.json")).runs
        data = json.dumps(sorted((run.cell, run.seed, sorted(run.scores.items())) for run in runs))
        return hashlib.sha256(data.encode()).hexdigest()[:16]
    summary = hashlib.sha256()
    for path in sorted(path for path in Path(out).iterdir() if path.is_file() and not path.name.startswith(".")):
        summary.update(path.name.encode() + path.read_bytes())
    return summary.hexdigest()[:16]


def begun(kind: str, out: str) -> int:
    """Count what is committed so far."""
    folder = Path(out)
    if kind == "study":
        return len(list(folder.glob("cells/*/metrics.jsonl")))
    if kind == "cache":
        return len(list(folder.glob("train-*.bin")))
    joined = 0
    with contextlib.suppress(OSError, ValueError):
        joined = sum(json.loads((folder / "manifest.json").read_text())["items"].values()) // PART
    return joined + len(list(folder.glob(".parts/*.npz")))


def killed_in_the_middle(kind: str, out: str, process: subprocess.Popen, kill: Callable[[], object]) -> None:
    """Wait until two pieces are there and another is being made, then kill a worker."""
    while process.poll() is None and (begun(kind, out) < 2 or not both_at_work(kind, out)):
        time.sleep(0.01)
    if process.poll() is not None:
        raise SystemExit(f"{kind} {out} ended before the kill:\n{process.communicate()[0][-2000:]}")
    kill()


def both_at_work(kind: str, out: str) -> bool:
    """Return whether both workers have made a piece; true where no notes tell: torchrun, and runs of a study."""
    notes = []
    for path in Path(out).glob(".work-*/notes/[!.]*"):
        with contextlib.suppress(OSError, ValueError):
            notes.append(json.loads(path.read_text())["pieces"])
    return kind == "study" or not list(Path(out).glob(".work-*")) or sum(pieces > 0 for pieces in notes) == 2


def processes_with(words: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if words in path.read_bytes().decode(errors="replace").replace("\0", " "):
                found.append(int(path.parent.name))
    return sorted(found)


def with_ray(kind: str, out: str, kill: bool) -> dict[str, Any]:
    from ray.cluster_utils import Cluster

    common = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=common)
    second = cluster.add_node(**common)
    try:
        begin = time.monotonic()
        flags = ["--on", "ray", "--ray.address", cluster.address] if kind == "study" else ["ray", cluster.address]
        process = started(kind, out, *flags)
        if kill:
            killed_in_the_middle(kind, out, process, lambda: cluster.remove_node(second, allow_graceful=False))
        return finish(process, begin)
    finally:
        cluster.shutdown()


def with_torchrun(kind: str, out: str) -> dict[str, Any]:
    begin = time.monotonic()
    process = started(kind, out, ranks=2)

    def kill() -> None:
        ranks = [pid for pid in processes_with(f"bench.lost_workers work {kind} {out}") if pid != process.pid]
        os.kill(ranks[-1], signal.SIGKILL)

    killed_in_the_middle(kind, out, process, kill)
    first = finish(process, begin)
    again = finish(started(kind, out, ranks=2), begin)
    return again | {"status": [first["status"], again["status"]]}


def with_slurm(kind: str, out: str) -> dict[str, Any]:
    begin = time.monotonic()
    flags = ["--slurm", "--slurm.cluster", "local"] if kind == "study" else ["slurm"]
    process = started(kind, out, *flags)
    killed_in_the_middle(
        kind, out, process, lambda: os.kill(processes_with("submitit.core._submit")[-1], signal.SIGKILL)
    )
    result = finish(process, begin)
    if kind == "study":  # an element is one run; the same command submits what is left
        result = finish(started(kind, out, *flags), begin) | {"status": [result["status"], "again"]}
    return result


def prepare(items: int) -> None:
    from dinorankclip.data.scenes.make import make_scenes
    from dinorankclip.models.folder import save_model
    from dinorankclip.models.joint import JointModel
    from dinorankclip.models.trunk import trunk_config

    none = dict.fromkeys(("kinds_train", "kinds_test", "fine_train", "fine_test"), 0)
    if not Path("pairs").exists():
        make_scenes(Path("scenes"), train=items, val=16, test=16, **none)
        Path("scenes/pairs").rename("pairs")
        Path("model").mkdir()
        save_model(JointModel(trunk_config("drc-tiny"), 0), Path("model"))
    Path("lost.toml").write_text(STUDY)


def page(folders: list[Path]) -> None:
    """Write the record of rows that were measured before."""
    from bench.harness import in_words, machine, today, write_dated

    found = {str(folder.name): json.loads((folder / "rows.json").read_text()) for folder in folders}
    about = machine(1, ("torch", "numpy"))
    lines = ["# Lost workers", "", __doc__.split("\n\n")[0], "", __doc__.split("\n\n")[2].strip()]
    lines += ["Statuses are those of the command, and of the command again where it was needed.", ""]
    for name, rows in found.items():
        pace = rows[0].get("pace", 0)
        lines += [f"## {name}" + (f", each piece takes {pace:g} s more" if pace else ""), ""]
        lines += [
            "| work | runner | same as one process | status | command, s | account |",
            "| --- | --- | --- | --- | --: | --- |",
        ]
        for row in rows:
            account = " ".join(row["account"]).partition(": ")[2]
            lines.append(
                f"| {row['work']} | {row['runner']} | {'yes' if row['same'] else 'NO'} | {row['status']} "
                f"| {row['seconds']:.0f} | {account} |"
            )
        lines.append("")
    write_dated(Path("docs/bench"), "lost-workers", today(), found, "\n".join([*lines, f"Machine: {in_words(about)}."]))


def main(argv: list[str] | None = None) -> None:
    given = sys.argv[1:] if argv is None else argv
    if given[:1] == ["page"]:
        page([Path(word) for word in given[1:] if word != "--folder"])
        return
    if given[:1] == ["work"]:
        work(given[1], given[2], given[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["embed", "cache", "study"])
    parser.add_argument("--runners", nargs="+", help="only these, after one process: ray killed slurm torchrun")
    parser.add_argument("--items", type=int, default=640)
    parser.add_argument("--folder", type=Path, default=Path("built/lost-workers"))
    options = parser.parse_args(given)
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    os.chdir(options.folder)
    prepare(options.items)
    rows = []
    for kind in options.only:
        runners: dict[str, Callable[[str], dict[str, Any]]] = {
            "one process": lambda out, kind=kind: finish(
                started(kind, out, *(["--workers", "1"] if kind == "study" else [])), time.monotonic()
            ),
            "two Ray nodes": lambda out, kind=kind: with_ray(kind, out, kill=False),
            "two Ray nodes, one killed": lambda out, kind=kind: with_ray(kind, out, kill=True),
            "submitit, an element killed": lambda out, kind=kind: with_slurm(kind, out),
        }
        if kind != "study":
            runners["torchrun, a rank killed"] = lambda out, kind=kind: with_torchrun(kind, out)
        expected = None
        words = {"two Ray nodes": "ray", "two Ray nodes, one killed": "killed"}
        for name, make in runners.items():
            short = words.get(name) or ("slurm" if "submitit" in name else name.partition(",")[0])
            if options.runners and name != "one process" and short not in options.runners:
                continue
            folder = f"{kind}-{name.replace(',', '').replace(' ', '-')}"
            shutil.rmtree(folder, ignore_errors=True)
            result = make(folder)
            try:
                found = digest_of(kind, folder)
            except OSError:
                found = f"missing:\n{result['tail']}"
            expected = expected or found
            rows.append(
                {"pace": PACE, "work": kind, "runner": name, "same": found == expected, "bytes": found} | result
            )
            print(json.dumps({k: v for k, v in rows[-1].items() if k != "tail" or found != expected}), flush=True)
            Path("rows.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
