"""Probes a teacher itself: the linear probe of its summary features on a classification set.

A student that learns from a teacher can hardly know more about a set than the teacher does. So the teacher's own probe
is an upper bound of what distillation can bring there, and a teacher near chance explains a gain of nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from dinorankclip.data.benchmark_sets import BenchmarkSet, LabelledSource
from dinorankclip.data.splits import carve_validation
from dinorankclip.evaluate.intervals import interval
from dinorankclip.evaluate.probe import linear_probe
from dinorankclip.teachers.frozen_teacher import Teacher, whole_images
from dinorankclip.types import UserError

BATCH = 64


@dataclass(frozen=True)
class TeacherProbe:
    """Holds the accuracy of a teacher's probe on a test part, with its 95 % interval over images."""

    teacher: str
    size: int  # side of the images that the teacher saw
    set: str
    accuracy: float
    low: float
    high: float
    images: int
    classes: int
    fingerprint: str  # of the test part


def probe_teacher(teacher: Teacher, benchmark: BenchmarkSet) -> TeacherProbe:
    """Fit the probe on the training part and use the test part once; C is chosen as in `ProbeScorer`."""
    if benchmark.kind != "classification" or "train" not in benchmark.splits:
        raise UserError(f"{benchmark.where} cannot be probed: it needs classes and a training part")
    split = benchmark.scored_split()
    rows, labels, _ = _rows(teacher, benchmark, "train")
    if "val" in benchmark.splits and split != "val":
        val_rows, val_labels, _ = _rows(teacher, benchmark, "val")
    else:
        source = benchmark.open("train")
        train, val = carve_validation([source.key(at) for at in range(len(source))], labels)
        rows, labels, val_rows, val_labels = rows[train], labels[train], rows[val], labels[val]
    test_rows, test_labels, fingerprint = _rows(teacher, benchmark, split)
    classes = len(benchmark.class_names)
    result = linear_probe(rows, labels, val_rows, val_labels, test_rows, test_labels, classes, label=benchmark.name)
    low, high = interval(result.correct)
    return TeacherProbe(
        teacher.name, teacher.input_size, benchmark.name, result.accuracy, low, high, len(test_labels), classes,
        fingerprint,
    )  # fmt: skip


def _rows(teacher: Teacher, benchmark: BenchmarkSet, split: str) -> tuple[Tensor, np.ndarray, str]:
    """Return summary features [N, C'] and labels [N] of a part, and its fingerprint. A damaged image is refused."""
    source = benchmark.open(split)
    assert isinstance(source, LabelledSource), "a classification set opens labelled sources"
    images = whole_images(
        source, range(len(source)), teacher.preprocessing, benchmark.reading.max_pixels, ahead=2 * BATCH
    )
    rows, batch = [], []
    for at, image in enumerate(tqdm(images, f"{benchmark.name} {split}", len(source), leave=False, unit="image")):
        if image is None:
            raise UserError(f"{source.key(at)} of {benchmark.where} is damaged; pack the set anew without it")
        batch.append(image)
        if len(batch) == BATCH or at == len(source) - 1:
            rows.append(teacher.dense(torch.stack(batch)).summary.cpu())
            batch = []
    return torch.cat(rows), source.labels, source.fingerprint
