"""Two processes, and cached accumulation, compute what one process computes in one shot."""

import json
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.train.running import run_to_end, small_pairs

SCRIPT = Path(__file__).with_name("record_gradients.py")
EXCHANGE = Path(__file__).with_name("compare_exchange.py")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs")


def recorded(pairs: Path, out: Path, processes: int, method: str = "clip", **changes: object) -> dict:
    """`changes`: a double underscore stands for the dot of a setting's name."""
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
    start = [sys.executable, *(torchrun if processes > 1 else []), SCRIPT, out, pairs, method]
    start.append(json.dumps({name.replace("__", "."): value for name, value in changes.items()}))
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


# Muon lifts the weakest directions of a gradient to the size of the others, and with them what they hold of rounding:
# its polynomials multiply them by up to 350 at each of ten steps. Losses agree as with AdamW.
CLOSE = {"adamw": 1e-5, "muon": 1e-3}


@pytest.mark.parametrize("optimiser", CLOSE)
def test_two_processes_and_cached_chunks_equal_one_shot(pairs, tmp_path, optimiser):
    one = recorded(pairs, tmp_path / "one", 1, optim__name=optimiser)
    assert sum(n.endswith("/loss") for n in one) == 10
    for name, processes, changes in (("two", 2, {}), ("chunked", 1, {"budget__chunk": 6})):
        other = recorded(pairs, tmp_path / name, processes, optim__name=optimiser, **changes)
        losses, gradients = largest_differences(one, other)
        assert losses < 1e-5, (name, losses)
        assert gradients < CLOSE[optimiser], (name, gradients)


@pytest.mark.long
@pytest.mark.parametrize("method", ["siglip", "cyclip", "alip", "rankclip", "rank"])
def test_every_method_on_two_processes_in_chunks_equals_one_shot(pairs, tmp_path, method):
    changes = {"optim__name": "adamw"} | ({"loss__staged": False} if method == "rank" else {})
    one = recorded(pairs, tmp_path / "one", 1, method, **changes)
    two = recorded(pairs, tmp_path / "two", 2, method, **changes, budget__chunk=3)
    losses, gradients = largest_differences(one, two)
    # The sigmoid loss's gradient of the scale is a difference of large sums. Where it changes its sign, the largest
    # entry of a step is small beside their rounding.
    close = 1e-4 if method == "siglip" else 1e-5
    assert losses < 1e-5 and gradients < close, (losses, gradients)


def test_gradients_exchanged_during_backward_are_those_exchanged_after_it(pairs, tmp_path):
    """Bit for bit, of towers, students, fusion, heads and anchor, in one pass and in two; some have no gradient."""
    common = ["--data", pairs, "--model.trunk", "drc-tiny", "--budget.batch", 16, "--budget.threads", 1]
    common = [str(word) for word in ("--preset", "scenes", *common, "--reading.workers", 0)]
    chunked = ["--budget.chunk", "3"]
    cases = {
        "rank": ["--method", "rank", "--loss.order", "3"],
        "taught": ["--recipe", "taught", "--distil.teacher-size", "64", "--distil.cache", "auto"],
        "full": ["--method", "dinorankclip", "--distil.teacher-size", "64", "--distil.cache", "auto"],
        "distil": ["--method", "distil", "--distil.teacher-size", "64", "--distil.cache", "auto"],
    }
    cases = {name: [*common, *flags] for name, flags in cases.items()}
    cases |= {f"{name} in chunks": [*cases[name], *chunked] for name in ("rank", "full")}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    run_to_end([*torchrun, str(EXCHANGE), str(tmp_path / "out"), json.dumps(cases)])
    found = json.loads((tmp_path / "out").read_text())
    assert found.keys() == cases.keys()
    for name, case in found.items():
        assert case["same"], name
        assert case["gradients"] > 20 and 3 <= case["during backward"] <= case["buckets"], (name, case)
    assert found["distil"]["without"] > 20  # the trunk does not learn
