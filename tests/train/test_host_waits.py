"""Steps on a GPU wait for nothing, and a step that is not finite is never applied.

No GPU is needed: the meta device has no values, so that an operation that reads one fails there, and the decisions of a
GPU are taken on CPU tensors."""

import contextlib
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dinorankclip.config import LossSettings, OptimSettings, ReadingSettings
from dinorankclip.data import loader
from dinorankclip.device import choose
from dinorankclip.losses.objective import Objective
from dinorankclip.losses.plackett_luce_blocked import sorting
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import trunk_config
from dinorankclip.train.step import NonFinite, Updater, Watch, backward
from dinorankclip.types import LossTerms, Placement, Progress
from tests.train.test_step import random_batch

META = torch.device("meta")
CPU = choose("cpu")
SHARED = torch.arange(12).remainder(7)[:, None]


class HostCopies(TorchDispatchMode):
    """Collects copies from the host for which the host would wait. (Reading the device raises an error.)"""

    def __init__(self):
        super().__init__()
        self.waits = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, function.name()
        if name == "aten::_to_copy":
            goes = torch.device(kwargs.get("device") or args[0].device).type == "meta" and args[0].device.type == "cpu"
            if goes and not kwargs.get("non_blocking"):
                self.waits.append(name)
        if name == "aten::copy_" and args[0].device.type == "meta" and args[1].device.type == "cpu" and args[1].ndim:
            self.waits.append(name)
        return function(*args, **kwargs)


def parts_of(method, settings, loss=None):
    model = JointModel(trunk_config("drc-tiny"), seed=1)
    if method == "siglip":
        model.trunk.start_sigmoid()
    objective = Objective(model.dim, method, loss)
    return model, objective, lambda: Updater({"model": model, "objective": objective}, settings, 10)


@pytest.mark.parametrize("groups", [None, SHARED])
@pytest.mark.parametrize("method", ["clip", "siglip", "cyclip", "alip", "rankclip", "rank"])
def test_a_step_that_is_not_logged_reads_nothing_from_the_device(monkeypatch, method, groups):
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # not for the meta device
    loss = LossSettings(order=5, list_length=8) if method == "rank" else None
    model, objective, updater = parts_of(method, OptimSettings(name="muon", clip_apart=groups is not None), loss)
    model.to(META), objective.to(META)
    made = updater()
    assert made.watch is not None
    taken = []
    made.optimizers[0].step = lambda: taken.append(made.optimizers[0].found_inf)  # fused AdamW has no meta kernel
    batch = replace(random_batch(second=method == "alip"), groups=groups)
    with HostCopies() as copies:
        for chunk in (None, 5):
            terms = backward(
                model, objective, batch, Progress(9, 10, 10), Placement(META, "fp32", ""), chunk, updater=made
            )
            norm = made.step(Progress(9, 10, 10), model.logit_scale)
    assert copies.waits == [] and taken == [made.watch.bad] * 2
    with pytest.raises((RuntimeError, NotImplementedError)):
        float(norm)  # the test would notice: this is what a log line does
    with pytest.raises((RuntimeError, NotImplementedError)):
        float(terms.total.detach())


def test_the_order_of_the_others_is_that_of_counting_them():
    lists = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(i))[:4] for i in range(5)])
    places, _ = sorting(lists, 9)
    assert sorting(lists.to(META), 9)[0].shape == places.shape
    others = torch.ones(5, 9, dtype=torch.bool).scatter_(1, lists, False)
    on_device = others.byte().argsort(dim=1, descending=True, stable=True)[:, :5]
    assert torch.equal(places[:, 4:], on_device)


class Sum(torch.nn.Module):
    """A loss whose second term is not finite on one batch."""

    def __init__(self, bad_call):
        super().__init__()
        self.calls, self.bad_call = 0, bad_call
        self.register_parameter("weight", torch.nn.Parameter(torch.ones(2, 3)))

    def forward(self, embeddings, scale, progress, detailed=False):
        self.calls += 1
        fine = embeddings.image.square().mean() + scale + self.weight.sum()
        other = embeddings.text.square().mean() * (float("nan") if self.calls == self.bad_call else 1.0)
        return LossTerms(fine + other, {"fine": fine, "other": other})


def steps_of(optimiser, watched, bad_call=None, bad_gradient=None, count=4):
    """Take steps with the decisions of a GPU or of a CPU; return all weights, the updater and its refusal, if any."""
    model = JointModel(trunk_config("drc-tiny"), seed=1)
    objective = Sum(bad_call)
    updater = Updater({"model": model, "objective": objective}, OptimSettings(name=optimiser, warmup_steps=1), 10)
    if watched:
        updater.watch = Watch(torch.device("cpu"))
    refusal = None
    for step in range(count):
        try:
            backward(model, objective, random_batch(), Progress(step, 10, 1), CPU, updater=updater)
            if step == bad_gradient:
                updater.parameters["objective.weight"].grad[1, 2] = float("inf")
            updater.step(Progress(step, 10, 1), model.logit_scale)
        except NonFinite as error:
            refusal = error
            break
    weights = {n: p.detach().clone() for n, p in updater.parameters.items()}
    return weights, updater, refusal


@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_decisions_on_the_device_give_the_bits_of_decisions_on_the_host(optimiser):
    on_host, updater, _ = steps_of(optimiser, False)
    on_device, watched, _ = steps_of(optimiser, True)
    watched.look()
    assert all(torch.equal(on_host[name], on_device[name]) for name in on_host)
    assert all(torch.equal(value, watched.state()[name]) for name, value in updater.state().items())


@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"bad_call": 3}, "not finite on process 0: other. The step was not taken"),
        ({"bad_gradient": 2}, "not finite after averaging over all processes: the gradient of objective.weight. The"),
    ],
)
def test_a_bad_step_and_all_after_it_are_not_applied(optimiser, bad, message):
    on_host, updater, refusal = steps_of(optimiser, False, **bad)
    on_device, watched, nothing = steps_of(optimiser, True, **bad, count=6)  # goes on for three steps
    assert nothing is None
    with pytest.raises(NonFinite) as later:
        watched.look()
    assert later.value.step == 2 and str(later.value) == str(refusal) and str(refusal).startswith(message)
    assert all(torch.equal(on_host[name], on_device[name]) for name in on_host)
    assert all(torch.equal(value, watched.state()[name]) for name, value in updater.state().items())


def test_batches_for_a_gpu_lie_in_page_locked_memory(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone().requires_grad_(False))
    batch = replace(random_batch(second=True), teacher_features={"x": torch.ones(12)}, groups=SHARED)
    pinned = batch.pin_memory()
    for name in ("images", "texts", "second_texts"):
        assert getattr(pinned, name) is not getattr(batch, name) and torch.equal(
            getattr(pinned, name), getattr(batch, name)
        )
    assert pinned.teacher_features["x"] is not batch.teacher_features["x"] and pinned.groups is batch.groups
    asked = []
    monkeypatch.setattr(loader, "DataLoader", lambda *_, pin_memory, **__: asked.append(pin_memory) or iter(()))
    for wanted in (False, True):
        assert list(loader.run_workers([], [], ReadingSettings(workers=0), wanted)) == []
    assert asked == [False, True]
