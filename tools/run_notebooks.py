"""Executes the notebooks of examples/notebooks, as readers would: python -m tools.run_notebooks [NAME …]

`--keep FOLDER` stores the executed notebooks there; the site shows the outputs of those in built/notebooks. An error in
a cell ends the program with its traceback. The CPU seconds of all kernels are printed.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
SECONDS = 900  # for one cell, on a busy machine


def execute(path: Path, keep: Path | None) -> float:
    """Run all cells in a fresh kernel. Return the CPU seconds that it took."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    client = NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    client.execute()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, keep / path.name)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="notebooks to run, without .ipynb; by default all")
    parser.add_argument("--keep", type=Path, help="store the executed notebooks in this folder")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("PYTHONPATH", str(FOLDER.parents[1]))  # the kernel starts in the notebooks' folder
    paths = sorted(FOLDER.glob("*.ipynb"))
    if unknown := set(asked.names) - {path.stem for path in paths}:
        sys.exit(f"there is no notebook {', '.join(sorted(unknown))} in {FOLDER}")
    total = 0.0
    for path in paths:
        if not asked.names or path.stem in asked.names:
            seconds = execute(path, asked.keep)
            total += seconds
            print(f"{path.stem:<24}{seconds:6.1f} CPU seconds", flush=True)
    print(f"{'together':<24}{total:6.1f}")


if __name__ == "__main__":
    main()
