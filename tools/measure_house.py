"""Measure how easy the tree is to enter: its files, their imports, and the files that a sample passes through.

    python tools/measure_house.py [--root DIR] [--json FILE]     # static: reads the sources, imports none of them
    python tools/measure_house.py --trace                        # also trains and scores tiny runs, about a minute

* One importer: exactly one other file imports the file, at its top or in a function. A name that an `__init__` hands on
  counts for the file it comes from; the `__init__` itself is an importer only of files that no other file imports. Not
  counted are `__init__`, `__main__` and entry modules, which define `main(argv)`.
* Header: the lines from the top of a file to its last import or `__all__` before any other statement.
* Rooms: ROOMS of tests/test_rooms.py gives the order. Files in no room are contracts; the studies come last by default.

The trace runs `python -m dinorankclip` with one thread and no reading workers. A file is passed if one of its functions
is called; top-level code and class bodies are none, methods that `dataclass` writes count for the file of the class.

* A training pair: from the fetch of the second step's batch to the end of its backward. The loop is the innermost frame
  on the stack both after an optimiser step and in the next backward. The fetch begins when the loop resumes a generator
  or calls `__next__`; what it does before that (clock, stop requests) is left out. This step is not logged, saved or
  validated. What remains beside the pair's own way: asking if logging is due, counting damage, demanding finite losses.
* An evaluation image: from the decoding of the set's first image to the first tensor of images × captions, the
  similarity; and the main thread's stack at that decoding, up to the innermost function that holds both ends. So the
  command line, loading the model, opening the set, intervals and written files are left out.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import defaultdict
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGES = ("dinorankclip", "dinorankclip_studies")
SIDE, IMAGES, CAPTIONS = 48, 17, 5  # of the drawn scenes: pixels, held-out images, captions of each
DATA = f"data make scenes drawn --train 48 --val {IMAGES} --test {IMAGES} --size {SIDE} --workers 1"
QUICK = (  # not staged: all orders act at the second step
    "--preset scenes --data drawn/pairs --model.trunk drc-tiny --budget.batch 16 --budget.epochs 1 --budget.threads 1 "
    "--reading.workers 0 --record.log-every 1000 --record.save-every 1000 --record.no-tensorboard --loss.no-staged "
    "--distil.teacher-size 64 "
)
RUNS = {
    "clip": "--method clip",
    "rank-order-3": "--method rank --loss.order 3",
    "dinorankclip-without-teacher": "--method dinorankclip --distil.cache none",
    "dinorankclip": "--method dinorankclip --distil.teacher random-vit --distil.text-teacher random-text",
}
SCORED = ("clip", "dinorankclip")  # these runs train to their end
SCORING = "--sets drawn/pairs --metrics retrieval --no-cache --no-pictures --threads 1"


class Tree:
    """The sources of both packages, by module name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        found = [file for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
        self.paths = {".".join(f.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): f for f in found}
        self.names = {module: str(path.relative_to(root)) for module, path in self.paths.items()}
        texts = {module: path.read_text(encoding="utf-8") for module, path in self.paths.items()}
        self.lines = {module: len(text.splitlines()) for module, text in texts.items()}
        self.parsed = {module: ast.parse(text) for module, text in texts.items()}
        self.handed_on = {m: dict(self.named_imports(m)) for m, path in self.paths.items() if path.stem == "__init__"}

    def named_imports(self, module: str) -> list[tuple[str, str]]:
        """Every imported name and the full dotted name it stands for."""
        package = module.split(".") if self.paths[module].stem == "__init__" else module.split(".")[:-1]
        found = []
        for node in ast.walk(self.parsed[module]):
            if isinstance(node, ast.Import | ast.ImportFrom):
                level, source = getattr(node, "level", 0), getattr(node, "module", None)
                base = [*(package[: len(package) - level + 1] if level else []), *([source] if source else [])]
                found += [(alias.asname or alias.name, ".".join([*base, alias.name])) for alias in node.names]
        return found

    def home(self, full: str) -> str | None:
        """The module of the packages that a dotted name leads to."""
        module, _, name = full.rpartition(".")
        further = self.handed_on.get(module, {}).get(name, full)
        if full not in self.paths and further != full:
            return self.home(further)
        return next((found for found in (full, module) if found in self.paths), None)

    def imported(self, module: str) -> set[str]:
        return {home for _, full in self.named_imports(module) if (home := self.home(full))} - {module}

    def one_importer(self) -> list[str]:
        importers = defaultdict(list)
        for module in sorted(self.paths, key=lambda module: module in self.handed_on):  # `__init__` last
            for one in self.imported(module):
                if module not in self.handed_on or not importers[one]:
                    importers[one].append(self.names[module])
        mains = {m: n.args.args for m in self.paths for n in self.parsed[m].body if getattr(n, "name", "") == "main"}
        entries = {m for m, arguments in mains.items() if [a.arg for a in arguments] in ([], ["argv"])}
        counted = [m for m in self.paths.keys() - entries if self.paths[m].stem not in ("__init__", "__main__")]
        return [f"{self.names[m]} by {importers[m][0]}" for m in sorted(counted) if len(importers[m]) == 1]

    def twice(self) -> list[str]:
        """Basenames that several files share, and where."""
        folders = defaultdict(list)
        for path in self.paths.values():
            folders[path.name].append(str(path.parent.relative_to(self.root)))
        shared = sorted(name for name in folders if len(folders[name]) > 1 and name != "__init__.py")
        return [f"{name} in {', '.join(folders[name])}" for name in shared]

    def later_rooms(self) -> list[str]:
        """Imports of a later room by an earlier one."""
        test = ast.parse((self.root / "tests/test_rooms.py").read_text(encoding="utf-8"))
        rooms = next(ast.literal_eval(node.value) for node in test.body if targets(node) == ["ROOMS"])
        dotted = [room if room.startswith(PACKAGES) else f"{PACKAGES[0]}.{room}" for room in rooms]
        order = {PACKAGES[1]: len(rooms)} | {room.replace("/", "."): n for n, room in enumerate(dotted)}
        inner_last = sorted(order.items(), key=lambda room: len(room[0]))  # the innermost room of a file is its own
        at = {m: place for m in self.paths for room, place in inner_last if f"{m}.".startswith(f"{room}.")}
        wrong = [(m, other) for m in at for other in sorted(self.imported(m)) if at.get(other, -1) > at[m]]
        return [f"{self.names[m]} imports {self.names[other]}" for m, other in wrong]


def targets(node: ast.AST) -> list[str]:
    """Names that an assignment assigns to."""
    assigned = getattr(node, "targets", [getattr(node, "target", None)])
    return [target.id for target in assigned if isinstance(target, ast.Name)]


def of_header(node: ast.stmt) -> bool:
    """True for a docstring, an import, `__all__`, or a guard of these (`if TYPE_CHECKING`, `try`)."""
    if isinstance(node, ast.If | ast.Try):
        inside = [*node.body, *node.orelse, *(s for h in getattr(node, "handlers", ()) for s in h.body)]
        return all(isinstance(one, ast.Pass) or of_header(one) for one in inside)
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or isinstance(node, ast.Import | ast.ImportFrom) or targets(node) == ["__all__"]


def static(root: Path) -> dict[str, Any]:
    """Rows of the table; of a list its length is shown there, and its entries below."""
    tree = Tree(root)
    total, headers = sum(tree.lines.values()), [takewhile(of_header, file.body) for file in tree.parsed.values()]
    in_headers = sum(max((node.end_lineno or 0 for node in header), default=0) for header in headers)
    return {
        "files": len(tree.paths),
        "lines": total,
        "median lines a file": statistics.median(tree.lines.values()),
        "files above 450 lines": [f"{tree.names[m]} {n}" for m, n in tree.lines.items() if n > 450],
        "files with one importer": tree.one_importer(),
        "header share, percent": round(100 * in_headers / total, 1),
        "basenames used twice": tree.twice(),
        "imports of a later room": tree.later_rooms(),
    }


def main_stack() -> list[FrameType]:
    """Frames of the main thread, innermost first."""
    return [frame for frame, _ in traceback.walk_stack(sys._current_frames()[threading.main_thread().ident or 0])]


class Recorder:
    """Calls of Python functions after `mark`: the file if it is of the packages, the caller, whether it may fetch."""

    def __init__(self, root: Path, out: Path, leaves: bool) -> None:
        self.root, self.roots = root, tuple(f"{root / package}{os.sep}" for package in PACKAGES)
        self.out, self.leaves, self.on = out, leaves, False
        self.calls: list[tuple[str | None, int, bool]] = []
        self.before: list[FrameType] = []  # the stack at the mark

    def mark(self) -> None:
        self.before, self.on = main_stack(), True

    def note(self, frame: FrameType, event: str, _: object) -> None:
        flags = frame.f_code.co_flags
        if self.on and event == "call" and flags & inspect.CO_OPTIMIZED:  # set for functions only
            fetches = bool(flags & inspect.CO_GENERATOR) or frame.f_code.co_name == "__next__"
            self.calls.append((self.file(frame), id(frame.f_back), fetches))

    def file(self, frame: FrameType) -> str | None:
        path = frame.f_code.co_filename
        path = frame.f_globals.get("__file__") or "" if path.startswith("<") else path  # written by `dataclass`
        return os.path.relpath(path, self.root) if path.startswith(self.roots) else None

    def common(self) -> FrameType:
        """The innermost frame on the stack both now and at the mark."""
        return next(frame for frame in main_stack() if frame in self.before)

    def finish(self, holder: FrameType, files: set[str | None]) -> None:
        sys.setprofile(None)
        where = f"{holder.f_code.co_qualname} of {self.file(holder)}"
        self.out.write_text(json.dumps({"holder": where, "files": sorted({*files, self.file(holder)} - {None})}))
        if self.leaves:
            os._exit(0)


def watch_training(recorder: Recorder) -> None:
    """Record the second step. On the CPU, backward runs in the thread that calls it, so autograd Functions are seen."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    original, loops, ends = torch.autograd.backward, [], []

    def backward(*args: Any, **kwargs: Any) -> None:
        loops.extend([recorder.common()] if recorder.on else [])
        original(*args, **kwargs)
        ends.append(len(recorder.calls))  # the last one counts: a step may go backward several times

    def step_ended(*_: Any) -> None:
        if not recorder.before:
            recorder.mark()
            sys.setprofile(recorder.note)
        elif recorder.on:
            recorder.on = False  # first: the lines below are calls themselves
            fetches = (n for n, (_, caller, fetch) in enumerate(recorder.calls) if fetch and caller == id(loops[0]))
            recorder.finish(loops[0], {file for file, *_ in recorder.calls[next(fetches) : ends[-1]]})

    torch.autograd.backward = backward  # Tensor.backward calls it by this name
    register_optimizer_step_post_hook(step_ended)


def watch_scoring(recorder: Recorder) -> None:
    """Record from the first image of the set, which a thread may decode, to the similarity."""
    import simplejpeg
    from torch.overrides import TorchFunctionMode

    original = simplejpeg.decode_jpeg

    def decode(*args: Any, **kwargs: Any) -> Any:
        pixels = original(*args, **kwargs)
        if not recorder.before and pixels.shape[:2] == (SIDE, SIDE):
            recorder.mark()
        return pixels

    class Results(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if recorder.on and sorted(getattr(result, "shape", ())) == [IMAGES, IMAGES * CAPTIONS]:
                recorder.on, holder = False, recorder.common()
                inner = recorder.before[: recorder.before.index(holder)]
                recorder.finish(holder, {*map(recorder.file, inner), *(file for file, *_ in recorder.calls)})
            return result

    simplejpeg.decode_jpeg = decode
    Results().__enter__()
    threading.setprofile(recorder.note)
    sys.setprofile(recorder.note)


def trace(root: Path) -> dict[str, dict[str, Any]]:
    """What passes → the function that holds its way, and the files."""
    passed, env = {}, os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as here:
        options = {"cwd": here, "env": env, "capture_output": True, "text": True, "timeout": 600}
        subprocess.run([sys.executable, "-m", PACKAGES[0], *DATA.split()], check=True, **options)
        jobs = {f"files of a pair, {run}": f"train --run {run} {QUICK}{method}" for run, method in RUNS.items()}
        jobs |= {f"files of an image, {run}": f"score {run} {SCORING}" for run in SCORED}
        for title, words in jobs.items():
            out = Path(here) / f"{title}.json"
            start = [sys.executable, str(Path(__file__).resolve()), "--root", str(root), "--child", str(out), "--"]
            ran = subprocess.run([*start, *words.split()], **options)
            if ran.returncode or not out.exists():
                sys.exit(f"{title}: nothing was recorded\n{ran.stdout}{ran.stderr}")
            passed[title] = json.loads(out.read_text())
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the tree; by default this one")
    parser.add_argument("--json", type=Path, help="write all of it to this file, too")
    parser.add_argument("--trace", action="store_true", help="also run the package and record what samples pass")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)  # a process of the trace, with words to run
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    root = asked.root.resolve()
    if asked.child:
        recorder = Recorder(root, asked.child, leaves=asked.words[0] == "score" or asked.words[2] not in SCORED)
        {"train": watch_training, "score": watch_scoring}[asked.words[0]](recorder)
        sys.argv = [PACKAGES[0], *asked.words]
        runpy.run_module(PACKAGES[0], run_name="__main__", alter_sys=True)
        return
    rows, passed = static(root), trace(root) if asked.trace else {}
    lists = {name: value for name, value in rows.items() if isinstance(value, list)}
    lists |= {title: found["files"] for title, found in passed.items()}
    for name, value in (rows | lists).items():
        print(f"{name:<50}{len(value) if isinstance(value, list) else value!s:>10}")
    for name, value in lists.items():
        held = f", held by {passed[name]['holder']}" if name in passed else ""
        print(f"\n{name} ({len(value)}{held})", *value, sep="\n  ")
    if asked.json:
        asked.json.write_text(json.dumps({"table": rows, "passed": passed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
