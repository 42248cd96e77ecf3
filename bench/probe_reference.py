"""scikit-learn's LogisticRegression on one problem: at its tightest, and at the loosest tolerance that will do."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from dinorankclip.evaluate.logistic import fit_path
from dinorankclip.evaluate.probe import GRID

ACCURACY = 1e-4  # of the objective, relative
TIGHT = 1e-9  # for the least objective
LADDER = tuple(10.0**-power for power in range(4, 10))

Classifier = tuple[Tensor, Tensor]  # weights [K, W] and bias [K]


@dataclass(frozen=True)
class Problem:
    """Scaled features and labels of one set, for both sides."""

    name: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: int
    chosen: float  # the C that the probe takes

    def objective(self, weight: Tensor, bias: Tensor, C: float) -> float:
        logits = self.train.double() @ weight.double().T + bias.double()
        loss = F.cross_entropy(logits, self.train_labels, reduction="sum")
        return (C * loss + 0.5 * weight.double().square().sum()).item()

    def accuracy(self, weight: Tensor, bias: Tensor) -> float:
        predicted = (self.test.double() @ weight.double().T + bias.double()).argmax(1)
        return 100 * (predicted == self.test_labels).double().mean().item()


@dataclass(frozen=True)
class Setting:
    """How scikit-learn is asked for one C."""

    C: float
    tol: float
    double: bool = False


class Sklearn:
    """LogisticRegression on one problem. With `warm`, a fit starts where the last one ended."""

    def __init__(self, problem: Problem, warm: bool = False) -> None:
        from sklearn.linear_model import LogisticRegression

        self._rows = {False: problem.train.numpy(), True: problem.train.double().numpy()}
        self._labels = problem.train_labels.numpy()
        self._model = LogisticRegression(solver="lbfgs", max_iter=1_000_000, warm_start=warm)

    def fit(self, setting: Setting) -> Classifier:
        """A ConvergenceWarning is an error."""
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            self._model.set_params(C=setting.C, tol=setting.tol).fit(self._rows[setting.double], self._labels)
        return torch.from_numpy(self._model.coef_.copy()), torch.from_numpy(self._model.intercept_.copy())

    def start_at(self, classifier: Classifier) -> None:
        self._model.coef_, self._model.intercept_ = (part.numpy().copy() for part in classifier)


def whole_path(problem: Problem, settings: Sequence[Setting], warm: bool = False) -> list[Classifier]:
    model = Sklearn(problem, warm)
    return [model.fit(setting) for setting in settings]


def least_objectives(problem: Problem) -> tuple[list[float], list[float], list[float]]:
    """For each C: the least objective, scikit-learn's excess over it at its tightest, and its test accuracy there."""
    model = Sklearn(problem, warm=True)
    settings = [Setting(C, TIGHT, double=True) for C in GRID]
    found = [model.fit(setting) for setting in tqdm(settings, f"{problem.name}: least objectives", unit="fit")]
    theirs = [problem.objective(*one, C) for one, C in zip(found, GRID)]
    path = fit_path(
        problem.train.double(), problem.train_labels, problem.classes, GRID, tolerance=TIGHT,
        label=f"{problem.name}: least objectives, ours",
    )  # fmt: skip
    least = [min(one, problem.objective(own.weight, own.bias, own.C)) for one, own in zip(theirs, path)]
    excess = [one / objective - 1 for one, objective in zip(theirs, least)]
    return least, excess, [problem.accuracy(*one) for one in found]


def loosest(problem: Problem, least: Sequence[float], warm: bool) -> list[Setting]:
    """For each C the cheapest setting that reaches the accuracy; with `warm`, after the settings before it."""
    chosen: list[Setting] = []
    last: Classifier | None = None
    for C, objective in zip(tqdm(GRID, f"{problem.name}: loosest tolerances", unit="fit"), least):
        for setting in (Setting(C, tol, double) for double in (False, True) for tol in LADDER):
            model = Sklearn(problem, warm)
            if warm and last is not None:
                model.start_at(last)
            try:
                found = model.fit(setting)
            except UserWarning:  # what a ConvergenceWarning is: this precision was not enough
                continue
            if problem.objective(*found, C) <= objective * (1 + ACCURACY):
                chosen.append(setting)
                last = found
                break
        else:
            raise RuntimeError(f"scikit-learn does not reach the least objective at C = {C:g}")
    return chosen
