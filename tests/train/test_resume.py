"""What a kill, a signal or a second start leaves behind."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from tests.systems import LINUX, POSIX
from tests.train.running import command, family, last_step, run_to_end, run_until, small_pairs, weights


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs")


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def whole_and_broken(pairs, folder, kills, processes, *flags):
    """Final weights of an uninterrupted run and of one killed at these steps, and the steps that the latter logged."""
    flags = ("--budget.epochs", "4", *flags)  # 6 steps an epoch, 24 in all
    whole, broken = folder / "whole", folder / "broken"
    run_to_end(command(pairs, whole, *flags, processes=processes))
    words = command(pairs, broken, *flags, processes=processes)
    for step in kills:
        assert run_until(words, broken, step, signal.SIGKILL) != 0
    run_to_end(words)
    lines = [json.loads(line) for line in (broken / "metrics.jsonl").read_text().splitlines()]
    return weights(whole), weights(broken), [line["step"] for line in lines if "loss" in line]


def test_killed_twice_ends_bit_identical(pairs, tmp_path):
    whole, broken, steps = whole_and_broken(pairs, tmp_path, kills=(5, 13), processes=1)
    assert same(whole, broken)
    assert steps == list(range(1, 25))


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("method", ["clip", "rank"])
def test_killed_at_five_random_steps_ends_bit_identical(pairs, tmp_path, processes, method):
    kills = sorted(random.Random(processes).sample(range(2, 23), 5))
    whole, broken, steps = whole_and_broken(pairs, tmp_path, kills, processes, "--method", method)
    assert same(whole, broken)
    assert steps == list(range(1, 25))


@POSIX
def test_sigterm_saves_the_last_step_and_other_settings_are_refused(pairs, tmp_path):
    run = tmp_path / "run"
    words = command(pairs, run, "--budget.epochs", "40", "--record.save-every", "1000")
    assert run_until(words, run, 3, signal.SIGTERM) == 128 + signal.SIGTERM
    saved = json.loads((run / "checkpoints" / "last" / "training.json").read_text())
    assert saved["step"] == last_step(run) >= 3
    other = subprocess.run([*words, "--optim.lr", "0.5"], capture_output=True, text=True)
    assert other.returncode == 2
    assert "optim.lr: 0.001 → 0.5" in other.stderr and "--restart" in other.stderr


@LINUX
@pytest.mark.long
def test_a_group_that_is_started_again_by_torchrun_ends_bit_identical(pairs, tmp_path):
    """One of two processes is killed at step 9; torchrun starts both again, and they go on from step 8."""
    flags = ("--budget.steps", "14")
    run_to_end(command(pairs, tmp_path / "whole", *flags, processes=2))
    words = command(pairs, tmp_path / "broken", *flags, processes=2)
    words.insert(words.index("--standalone"), "--max-restarts=3")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ONE_THREAD)
    deadline = time.monotonic() + 240
    while last_step(tmp_path / "broken") < 9:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(next(pid for pid in family(process.pid) if rank_of(pid) == "1"), signal.SIGKILL)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    assert "resuming from" in said and "process 1 of 2 has ended" in said and "Traceback" not in said
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "broken"))


@LINUX
@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 4])
def test_a_checkpoint_of_two_processes_goes_on_with_another_number(pairs, tmp_path, processes):
    """Killed at step 5 of 12 after a checkpoint of step 4: the losses of the other steps are those of two processes."""
    run, flags = tmp_path / "run", ("--budget.steps", "12", "--method", "rank", "--loss.order", "2")
    run_to_end(command(pairs, tmp_path / "whole", *flags, processes=2))
    assert run_until(command(pairs, run, *flags, processes=2), run, 5, signal.SIGKILL) != 0
    states = json.loads((run / "checkpoints" / "last" / "training.json").read_text())
    assert states["processes"] == 2 and states["step"] in (4, 6)
    said = run_to_end(command(pairs, run, *flags, processes=processes))
    assert "resuming from" in said.stdout + said.stderr
    expected, found = losses(tmp_path / "whole"), losses(run)
    assert found.keys() == expected.keys() == set(range(1, 13))
    assert max(abs(found[step] - expected[step]) for step in expected) < 1e-5


def losses(run: Path) -> dict[int, float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


def rank_of(pid: int) -> str | None:
    """The rank that torchrun gave to a process."""
    with contextlib.suppress(OSError):
        values = dict(part.partition("=")[::2] for part in Path(f"/proc/{pid}/environ").read_text().split("\0"))
        return values.get("RANK")
    return None
