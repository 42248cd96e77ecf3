"""Runs inside an environment with the installed wheel (tools/check_wheel.py): `core` or `beside` open_clip's loss.

Imports nothing of the source tree.
"""

from __future__ import annotations

import math
import subprocess
import sys
from importlib.metadata import distributions, requires, version
from pathlib import Path

SLOWEST_IMPORT = 0.1  # CPU seconds of `import dinorankclip`, before torch
TRIES = 5
TIMED = "import time; t = time.process_time(); import dinorankclip; print(time.process_time() - t)"
AFTER_TORCH = "import torch, " + TIMED.removeprefix("import ").replace(
    "import dinorankclip", "from dinorankclip import RankingLoss"
)


def main() -> None:
    import dinorankclip

    place = Path(dinorankclip.__file__).resolve()
    assert place.is_relative_to(Path(sys.prefix).resolve()), f"{place} is not the installed wheel"
    if sys.argv[1] == "core":
        check_requirements()
        check_import_time()
        check_steps(info_nce_only())
        check_commands()
    else:
        check_steps(open_clip_loss())
    print(f"{sys.argv[1]}: all checks passed")


def check_requirements() -> None:
    lines = [line for line in requires("dinorankclip") or [] if "extra ==" not in line]
    assert sorted(line[:5] for line in lines) == ["numpy", "torch"], lines
    names = {entry.metadata["Name"].lower() for entry in distributions()}
    print(f"torch {version('torch')}, numpy {version('numpy')}; installed: {', '.join(sorted(names))}")
    unwanted = names & {"open-clip-torch", "open_clip_torch", "timm", "torchvision", "pillow", "tyro", "safetensors"}
    assert not unwanted, unwanted


def check_import_time() -> None:
    """Take the least of some tries, as CPU time, so that other work on the machine does not count."""

    def least(code: str) -> float:
        answers = [
            subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True) for _ in range(TRIES)
        ]
        return min(float(answer.stdout) for answer in answers)

    before, after = least(TIMED), least(AFTER_TORCH)
    print(f"import dinorankclip: {before:.3f} CPU seconds before torch; RankingLoss after torch: {after:.3f}")
    assert before < SLOWEST_IMPORT, f"import dinorankclip takes {before:.3f} s"


def info_nce_only():
    from dinorankclip.losses import info_nce

    return info_nce


def open_clip_loss():
    """Return open_clip's own contrastive loss, after a comparison with ours."""
    import torch

    from dinorankclip.device import declare_missing
    from dinorankclip.losses import info_nce

    declare_missing()  # where torchvision and torch are of different builds
    from open_clip import ClipLoss

    theirs = ClipLoss()
    torch.manual_seed(1)
    image, text = (torch.nn.functional.normalize(torch.randn(32, 16), dim=1) for _ in range(2))
    scale = torch.tensor(10.0)
    difference = abs(theirs(image, text, scale) - info_nce(image, text, scale)).item()
    print(f"open_clip's ClipLoss and info_nce differ by {difference:.1e}")
    assert difference < 1e-5
    return theirs


def check_steps(contrastive, steps: int = 30) -> None:
    """Train two linear towers on pairs that belong together, with the ranking loss beside a contrastive loss."""
    import torch
    from torch import nn

    from dinorankclip import RankingLoss

    torch.manual_seed(0)
    hidden = torch.randn(48, 12)
    images, texts = hidden @ torch.randn(12, 40), hidden @ torch.randn(12, 24)
    towers = nn.ModuleList([nn.Linear(40, 16), nn.Linear(24, 16)])
    logit_scale = nn.Parameter(torch.tensor(math.log(10.0)))
    ranking = RankingLoss(16, order=3)
    before = {name: value.clone() for name, value in ranking.state_dict().items()}
    optimizer = torch.optim.AdamW([*towers.parameters(), *ranking.parameters(), logit_scale], lr=1e-2, weight_decay=0)
    totals = []
    for step in range(steps):
        image, text = (nn.functional.normalize(tower(x), dim=1) for tower, x in zip(towers, (images, texts)))
        ranking.set_progress(step, steps, 64)
        ranks = ranking(image, text, logit_scale.exp())
        loss = contrastive(image, text, logit_scale.exp())
        optimizer.zero_grad()
        (loss + ranks.total).backward()
        assert all(
            p.grad is None or p.grad.isfinite().all() for group in optimizer.param_groups for p in group["params"]
        )
        optimizer.step()
        totals.append(loss.item())
    moved = sum(not torch.equal(before[name], value) for name, value in ranking.state_dict().items())
    print(f"{steps} steps: contrastive loss {totals[0]:.3f} → {totals[-1]:.3f}, ranking terms {sorted(ranks.terms)}")
    assert totals[-1] < 0.5 * totals[0] and moved > 0 and float(ranks.total.detach()) > 0


def check_commands() -> None:
    """With the core alone, help and doctor answer, and other commands name the extra that they need."""
    command = [sys.executable, "-I", "-m", "dinorankclip"]
    for verb, extra in (("train", "train"), ("search", "train"), ("serve", "serve"), ("study", "studies")):
        ended = subprocess.run([*command, verb], capture_output=True, encoding="utf-8")
        assert ended.returncode == 2 and ended.stderr.count("\n") == 1, ended.stderr
        assert ended.stderr.endswith(f"pip install 'dinorankclip[{extra}]'\n"), ended.stderr
        print(ended.stderr, end="")
    for words in (["--help"], ["doctor"]):
        ended = subprocess.run([*command, *words], capture_output=True, encoding="utf-8")
        assert ended.returncode == 0, ended.stdout + ended.stderr


if __name__ == "__main__":
    main()
