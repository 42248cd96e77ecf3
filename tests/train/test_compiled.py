"""Compiled towers: the same numbers, and a message where they cannot be had."""

import os
import subprocess
import sys

import pytest
import torch

from dinorankclip.config import LossSettings
from dinorankclip.device import choose
from dinorankclip.losses.objective import Objective
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import trunk_config
from dinorankclip.train import compiled
from dinorankclip.train.compiled import compile_towers
from dinorankclip.train.step import backward
from dinorankclip.types import Progress, UserError
from tests.train.test_step import random_batch

CPU, LATE = choose("cpu"), Progress(9, 10, 10)


def gradients(model, chunk=None):
    objective = Objective(model.dim, "rank", LossSettings(order=2))
    terms = backward(model.train(), objective, random_batch(), LATE, CPU, chunk)
    return float(terms.total.detach()), {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.long
def test_compiled_towers_give_the_same_gradients_in_one_pass_and_in_two():
    loss, plain = gradients(JointModel(trunk_config("drc-tiny"), seed=1))
    for chunk in (None, 5):
        model = JointModel(trunk_config("drc-tiny"), seed=1)
        names = list(model.state_dict())
        compile_towers(model)
        other, fast = gradients(model, chunk)
        assert list(model.state_dict()) == names and abs(other - loss) < 1e-5
        scale = max(float(g.abs().max()) for g in plain.values() if g is not None)
        assert max(float((fast[n] - g).abs().max()) for n, g in plain.items() if g is not None) < 1e-5 * scale


def test_evaluation_runs_the_towers_as_they_are(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: lambda *_: pytest.fail("compiled code ran"))
    monkeypatch.setattr(compiled, "_demand_compiler", lambda device: None)
    model = JointModel(trunk_config("drc-tiny"), seed=1).eval()
    batch = random_batch()
    before = model.encode_image(batch.images), model.encode_text(batch.texts)
    compile_towers(model)
    after = model.encode_image(batch.images), model.encode_text(batch.texts)
    assert all(torch.equal(*pair) for pair in zip(before, after))


def test_what_cannot_be_compiled_is_refused(monkeypatch):
    taught = JointModel(trunk_config("drc-tiny"))
    taught.teach_trunk("image")
    with pytest.raises(UserError, match="own tokens are read"):
        compile_towers(taught)
    with pytest.raises(UserError, match="this trunk has others"):
        compile_towers(JointModel(trunk_config("RN50")))

    def fails(function):
        raise RuntimeError("no C++ compiler\nmore")

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(UserError, match=r"torch.compile fails here \(no C\+\+ compiler\)"):
        compile_towers(JointModel(trunk_config("drc-tiny")))


@pytest.mark.long
def test_a_missing_compiler_is_named(tmp_path):
    """torch caches what it compiled and which compiler it found: a process of its own, without either."""
    code = "import torch; from dinorankclip.train.compiled import _demand_compiler as d; d(torch.device('cpu'))"
    env = os.environ | {"CXX": "/missing/g++", "PATH": "/missing", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "--budget.compile: torch.compile fails here" in done.stderr.splitlines()[-1]
