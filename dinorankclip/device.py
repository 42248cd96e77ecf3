"""Which device and which precision a process uses, decided once, with the reason in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from dinorankclip.types import UserError, first_line

BF16_ON_CPU = "some CPUs announce AMX for bf16 and then die of an illegal instruction; fp32 is safe"


@dataclass(frozen=True)
class Placement:
    device: torch.device
    precision: str  # "fp32" or "bf16"
    reason: str

    def autocast(self) -> torch.autocast:
        """Mixed precision for the encoders; parameters and losses stay fp32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")


def choose(device: str = "auto", precision: str = "auto", local_rank: int = 0) -> Placement:
    """Resolve `auto`: the GPU if there is one; bf16 where the GPU computes it natively, else fp32."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device {device}: torch sees no GPU here; use cpu")
    if device == "cuda":
        device = f"cuda:{local_rank}"
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device {device}: {first_line(error)}") from error
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {where}: there are {torch.cuda.device_count()} GPUs here, counted from 0")
    if precision != "auto":
        reason = f"{precision} on {where}, as asked"
        if precision == "bf16" and where.type == "cpu":
            reason += f"; without native support it is far slower, and {BF16_ON_CPU}"
        if precision == "fp32" and where.type == "cuda":
            _round_convolutions_to_fp32()
        return Placement(where, precision, reason)
    if where.type == "cuda" and _computes_bf16(where):
        return Placement(where, "bf16", f"bf16 on {torch.cuda.get_device_name(where)}: the GPU computes it natively")
    if where.type == "cuda":
        _round_convolutions_to_fp32()
        return Placement(where, "fp32", f"fp32 on {torch.cuda.get_device_name(where)}: no native bf16")
    return Placement(where, "fp32", f"running in fp32 on {'the CPU' if where.type == 'cpu' else where}")


def _computes_bf16(gpu: torch.device) -> bool:
    with torch.cuda.device(gpu):  # the question is about the current one
        return torch.cuda.is_bf16_supported(including_emulation=False)


def _round_convolutions_to_fp32() -> None:
    """By default cudnn takes TF32, with 10 of fp32's 23 bits, for these alone: not for matrix products."""
    torch.backends.cudnn.allow_tf32 = False


def announces_amx() -> bool:
    """Whether this machine's processor (or whoever pretends to be one) claims matrix units for bf16. Linux only."""
    try:
        return " amx_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
