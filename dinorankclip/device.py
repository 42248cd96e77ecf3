"""Which device and which precision a process uses, decided once, with the reason in words."""

from __future__ import annotations

import ctypes
import sys
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


# -------- memory
# Keep freed memory in the process for the next step.
#
# glibc hands large blocks back to the system when they are freed. A training step frees its activations and gradients
# and wants the same ones again a moment later, which then arrive page by page, each found, zeroed and mapped by the
# kernel: a sixth of a small trunk's step on a CPU, 4 % of a ViT-B/32's, a fifth of decoding a photo.

_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # M_MMAP_MAX and M_TRIM_THRESHOLD of malloc.h


def keep_freed_memory() -> bool:
    """For this process and its later children. False where the C library knows no such setting (macOS, musl)."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))


# -------- torchvision_ops
# Let a CUDA-built torchvision import beside a CPU-only torch.
#
# torchvision's Python code registers shape rules for two of its compiled operators (`nms`, `qnms`) while
# it is being imported. If its compiled library cannot be loaded (a wheel built for CUDA beside a CPU build of
# torch), these operators do not exist and the import fails, and with it timm and open_clip, which only need
# torchvision's transforms. Declaring the two signatures is enough for the import; calling `ops.nms` would still
# fail, and nothing in this project calls it.
#
# Call `declare_missing()` before the first import of open_clip, timm or torchvision.

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")
_library = None  # the declarations live as long as this object


def declare_missing() -> bool:
    """Declare the operators unless the compiled ones can be loaded. Returns whether it declared them."""
    global _library
    if _library is not None:
        return True
    import importlib.machinery
    import importlib.util
    import os

    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    # The same compiled library that torchvision itself will try to load, tried first.
    finder = importlib.machinery.FileFinder(
        os.path.dirname(spec.origin),
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
    )
    compiled = finder.find_spec("_C")
    if compiled is not None:
        try:
            torch.ops.load_library(compiled.origin)
            return False
        except OSError:
            pass
    _library = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        _library.define(name + _SIGNATURE)
    return True
