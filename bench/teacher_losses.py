"""What is lost where a teacher's features are reduced, coded and cropped (`bench.teacher`)."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor

from dinorankclip.data.decode import decode, read_header
from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.samples import random_view
from dinorankclip.losses.distillation import cosine_gram, gram_distance, normalise_gram
from dinorankclip.losses.resampling import resample_gram, resample_grid
from dinorankclip.teachers.cache_format import REDUCED, Gram, ImageRecord, NumberCodec, fit_basis
from dinorankclip.teachers.frozen_teacher import Teacher
from dinorankclip.teachers.registry import open_teacher

CC3M = 2_710_000  # images


def photos(data: str, count: int, split: str = "train") -> list[Tensor]:
    """The first `count` images, whole, uint8 [3, H, W]."""
    source = open_pairs(data, split=split)
    found = []
    for index in range(min(count, len(source))):
        raw = source.read(index)
        found.append(torch.from_numpy(np.array(decode(raw.image, read_header(raw.image)))).permute(2, 0, 1))
    return found


def tokens_of(teacher: Teacher, images: list[Tensor]) -> Tensor:
    """fp32 [N, L, C]"""
    resized = [teacher.preprocessing.resize(image.contiguous()) for image in images]
    return torch.cat([teacher.dense(torch.stack(resized[i : i + 32])).tokens for i in range(0, len(resized), 32)])


def coding(options: argparse.Namespace) -> dict:
    """Everything against unreduced fp32, as Gram distance on the cached grid, mean over images."""
    fit, scored = photos(options.data, options.images), photos(options.data, options.images, "val")
    found = {}
    for size in options.sizes:
        teacher = open_teacher(options.teacher, size)
        tokens = tokens_of(teacher, scored)
        exact, length, width = cosine_gram(tokens), tokens.shape[1], tokens.shape[2]
        basis = fit_basis([tokens_of(teacher, fit).flatten(0, 1)])
        reduced = tokens @ basis.T
        coder = Gram(length, "8bit")
        coded = torch.from_numpy(coder.decode(coder.encode(tokens.numpy())))
        rows = {
            "Gram, 8 bits": (normalise_gram(coded), ImageRecord(length, width, REDUCED, "gram", "8bit").bytes),
            "PCA-256, fp32": (cosine_gram(reduced), None),
        }
        for kind in ("fp16", "8bit"):
            numbers = NumberCodec(length * basis.shape[0], kind)
            back = torch.from_numpy(numbers.decode(numbers.encode(reduced.flatten(1).numpy()))).view_as(reduced)
            rows[f"PCA-256, {kind}"] = (
                cosine_gram(back),
                ImageRecord(length, width, basis.shape[0], "tokens", kind).bytes,
            )
            rows[f"  its coding alone, {kind}"] = (cosine_gram(back), None)
        for name, (gram, size_of) in rows.items():
            against = cosine_gram(reduced) if name.startswith("  its") else exact
            error = gram_distance(gram, against)
            entry = {"error": error.mean().item(), "worst": error.max().item()}
            if size_of:
                entry |= {"bytes": size_of, "cc3m_gb": size_of * CC3M / 1e9}
            found[f"{teacher.grid[0]}×{teacher.grid[1]} {name}"] = entry
            size_text = f"{size_of:8d} bytes, CC3M {size_of * CC3M / 1e9:6.1f} GB" if size_of else ""
            print(f"{teacher.grid[0]:>2}×{teacher.grid[1]:<2} {name:<26} {100 * entry['error']:7.3f} %  {size_text}")
    return found


def crops(options: argparse.Namespace) -> dict:
    """On the comparing grid: Gram distance to the teacher that looks at the crop itself."""
    teacher = open_teacher(options.teacher, options.sizes[0])
    images, draws = photos(options.data, options.images), np.random.default_rng(0)
    compare = ((max(teacher.grid) + 1) // 2,) * 2
    coder = Gram(teacher.grid[0] * teacher.grid[1], "8bit")
    whole = torch.from_numpy(coder.decode(coder.encode(tokens_of(teacher, images).numpy())))
    to_compare = resample_grid(teacher.grid, compare)
    found = {}
    for low, high in ((0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0)):
        views = [random_view(draws, *image.shape[1:], (low, high), True) for image in images]
        shown = []
        for image, view in zip(images, views):
            height, width = image.shape[1:]
            top, left = round(view.top * height), round(view.left * width)
            box = image[:, top : top + round(view.height * height), left : left + round(view.width * width)]
            shown.append(box.flip(-1) if view.flip else box)
        fresh_tokens = tokens_of(teacher, shown)
        fresh = normalise_gram(resample_gram(fresh_tokens @ fresh_tokens.mT, to_compare))
        box = torch.tensor([(v.top, v.left, v.height, v.width) for v in views], dtype=torch.float64)
        follow = resample_grid(teacher.grid, compare, *box.unbind(1), torch.tensor([v.flip for v in views]))
        cached = gram_distance(normalise_gram(resample_gram(whole, follow)), fresh)
        uncropped = gram_distance(normalise_gram(resample_gram(whole, to_compare)), fresh)
        better = (cached < uncropped).double().mean().item()
        means = {"cached": cached.mean().item(), "uncropped": uncropped.mean().item()}
        found[f"{low}–{high}"] = means | {"better": better}
        print(
            f"crops of {low:.0%}–{high:.0%}: cached and cropped {cached.mean():.4f}, uncropped {uncropped.mean():.4f}, "
            f"the former nearer for {better:.0%} of {len(images)} images ({compare[0]}×{compare[1]} grid)"
        )
    return found
