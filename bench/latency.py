"""Parameters and batch-1 latency of each part of a model (trunk, students, fusion, the whole), and of every student.

  python -m bench.latency --models scenes cc3m --threads 2

Times are of one image and of one caption of 12 words, in evaluation mode; parts are timed in turn, round by round.
Run with nothing else running. Figures go to docs/bench.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from bench.harness import alternate, in_words, machine_now, timed, today, write_dated
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.models.joint import JointModel
from dinorankclip.models.students import count, image_student
from dinorankclip.presets import for_method, preset
from dinorankclip.train.assemble import build_model

# Of the ablation of students: at 48 px small ones, at ViT-B/32's 224 the paper's.
STUDENTS = {
    "scenes": ("vit-micro", "resnet-micro", "mobilenet-micro"),
    "cc3m": ("vit-tiny", "resnet50", "mobilenetv3-large"),
}
CAPTION = "a small red bird with a long beak sits on a wooden fence"


def parts_of(model: JointModel) -> dict[str, tuple[nn.Module, Callable[[], object]]]:
    """Name → (its parameters, one forward pass of batch 1)."""
    side = model.trunk.image_spec.size
    pixels = model.normalised(torch.randint(0, 256, (1, 3, side, side), dtype=torch.uint8))
    texts = Tokenizer(model.trunk.text_spec)([CAPTION])
    seen, read = model.see(pixels), model.read(texts)
    table = model.trunk.towers.token_embedding.weight
    visual = model.trunk.towers.visual
    return {
        "image: trunk": (visual, lambda: model.trunk.encode_image(pixels)),
        "image: student": (model.image_student, lambda: model.image_student(pixels)),
        "image: fusion": (model.image_fusion, lambda: model.image_fusion(seen.contrastive, seen.features)),
        "image: whole": (None, lambda: model.see(pixels)),
        "text: trunk": (None, lambda: model.trunk.encode_text(texts)),
        "text: student": (model.text_student, lambda: model.text_student(texts, table)),
        "text: fusion": (model.text_fusion, lambda: model.text_fusion(read.contrastive, read.features)),
        "text: whole": (None, lambda: model.read(texts)),
    }


def parameters(model: JointModel, name: str, module: nn.Module | None) -> int:
    if module is not None:
        return sum(p.numel() for p in module.parameters())
    image = sum(p.numel() for p in model.trunk.towers.visual.parameters())
    trunk = sum(p.numel() for p in model.trunk.parameters())
    if name == "text: trunk":
        return trunk - image
    if name.startswith("image"):
        own, extra = image, (model.image_student, model.image_fusion)
    else:
        own, extra = trunk - image, (model.text_student, model.text_fusion)
    return own + sum(p.numel() for part in extra for p in part.parameters())


@torch.inference_mode()
def measure(name: str, rounds: int) -> list[dict[str, object]]:
    model = build_model(for_method(preset(name), "dinorankclip")).eval()
    parts = parts_of(model)
    found = milliseconds({part: forward for part, (_module, forward) in parts.items()}, rounds)
    return [
        {"preset": name, "part": part, "parameters": parameters(model, part, module)} | found[part]
        for part, (module, _forward) in parts.items()
    ]


@torch.inference_mode()
def measure_students(name: str, rounds: int) -> list[dict[str, object]]:
    """Image students at the preset's image size: those of its ablation."""
    side = build_model(preset(name)).trunk.image_spec.size
    pixels = torch.randn(1, 3, side, side)
    students = {one: image_student(one, side).eval() for one in STUDENTS[name]}
    found = milliseconds({one: lambda student=student: student(pixels) for one, student in students.items()}, rounds)
    return [
        {"preset": name, "part": f"student {one}", "student": one, "parameters": count(student)} | found[one]
        for one, student in students.items()
    ]


def milliseconds(forwards: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """Median and 95th percentile of each; the first tenth of the rounds warms up."""
    warmups = rounds // 10
    sides = {name: timed(forward) for name, forward in forwards.items()}
    # One way only: a small part that followed itself would find its weights in the processor's cache.
    taken = alternate(sides, rounds - warmups, warmups, there_and_back=False)
    found = {}
    for name, seconds in taken.items():
        ordered = sorted(1000 * one for one in seconds)
        found[name] = {"p50 ms": ordered[len(ordered) // 2], "p95 ms": ordered[int(0.95 * (len(ordered) - 1))]}
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["scenes", "cc3m"])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/bench"))
    asked = parser.parse_args(argv)
    torch.set_num_threads(asked.threads)
    about = machine_now(asked.threads, ("torch",))
    rows = [row for name in asked.models for row in measure(name, asked.rounds)]
    rows += [row for name in asked.models if name in STUDENTS for row in measure_students(name, asked.rounds)]
    lines = [
        f"{in_words(about)}. Batch 1, {asked.rounds} rounds, parts in turn.",
        "",
        "| preset | part | parameters | p50 | p95 |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {r['preset']} | {r['part']} | {r['parameters'] / 1e6:.2f} M | {r['p50 ms']:.2f} ms | {r['p95 ms']:.2f} ms |"
        for r in rows
    ]
    write_dated(asked.out, "latency", today(), rows, "\n".join(lines))


if __name__ == "__main__":
    main()
