"""Run several commands of `python -m dinorankclip` in one child process, so that torch is imported once.

Nothing of the package is imported here by the name of a module: files of it may move.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHILD = """
import contextlib, io, json, os, runpy, sys, traceback
answers, (commands, result) = [], json.load(sys.stdin)
for words in commands:
    sys.argv = ["dinorankclip", *words]
    output, status = io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            runpy.run_module("dinorankclip", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
            status = 1
    answers.append([status, output.getvalue()])
with open(result, "w") as file:
    json.dump(answers, file)
"""


@dataclass(frozen=True)
class Answer:
    status: int
    text: str  # stdout and stderr


def run_each(commands: list[list[object]], folder: Path) -> list[Answer]:
    """Run the commands one after another in `folder`; one that fails does not keep the next from running."""
    result = folder / ".answers.json"
    asked = json.dumps([[[str(word) for word in words] for words in commands], str(result.resolve())])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=asked, text=True, cwd=folder, env=env, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [Answer(*answer) for answer in json.loads(result.read_text())]
    result.unlink()
    return answers


def run_all(commands: list[list[object]], folder: Path) -> list[str]:
    """Run the commands and return the output of each; every one of them must succeed."""
    answers = run_each(commands, folder)
    for words, answer in zip(commands, answers):
        assert answer.status == 0, f"{' '.join(map(str, words))}\n{answer.text}"
    return [answer.text for answer in answers]
