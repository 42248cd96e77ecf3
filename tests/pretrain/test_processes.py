"""Two processes, and cached accumulation, compute what one process computes in one shot."""

import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.pretrain.running import run_to_end, small_pairs

SCRIPT = Path(__file__).with_name("record_gradients.py")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs")


def recorded(pairs: Path, out: Path, processes: int, *flags: str) -> dict:
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
    start = [sys.executable, *(torchrun if processes > 1 else []), SCRIPT, out, pairs, *flags]
    run_to_end([str(word) for word in start])
    return load_file(out)


def largest_differences(one: dict, other: dict) -> tuple[float, float]:
    """Of the losses, and of the gradients relative to each step's largest entry."""
    assert one.keys() == other.keys()
    losses = max(abs(float(one[n] - other[n])) for n in one if n.endswith("/loss"))
    gradients = 0.0
    for step in {n.split("/")[0] for n in one}:
        names = [n for n in one if n.startswith(f"{step}/") and not n.endswith("/loss")]
        scale = max(float(one[n].abs().max()) for n in names)
        gradients = max(gradients, max(float((one[n] - other[n]).abs().max()) for n in names) / scale)
    return losses, gradients


def test_two_processes_and_cached_chunks_equal_one_shot(pairs, tmp_path):
    one = recorded(pairs, tmp_path / "one", 1)
    assert sum(n.endswith("/loss") for n in one) == 10
    for name, processes, flags in (("two", 2, ()), ("chunked", 1, ("--budget.chunk", "6"))):
        losses, gradients = largest_differences(one, recorded(pairs, tmp_path / name, processes, *flags))
        assert losses < 1e-5, (name, losses)
        assert gradients < 1e-5, (name, gradients)


@pytest.mark.long
@pytest.mark.parametrize("method", ["cyclip", "alip", "rankclip", "rank"])
def test_every_method_on_two_processes_in_chunks_equals_one_shot(pairs, tmp_path, method):
    flags = ("--method", method, "--loss.no-staged") if method == "rank" else ("--method", method)
    one = recorded(pairs, tmp_path / "one", 1, *flags)
    two = recorded(pairs, tmp_path / "two", 2, *flags, "--budget.chunk", "3")
    losses, gradients = largest_differences(one, two)
    assert losses < 1e-5 and gradients < 1e-5, (losses, gradients)
