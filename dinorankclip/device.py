"""Prepares the machine: chooses device and precision, keeps freed memory, lets torchvision import."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import torch

from dinorankclip.hub import stay_offline
from dinorankclip.types import Placement, UserError, first_line

__all__ = ["BF16_ON_CPU", "Placement", "announces_amx", "choose", "declare_missing", "keep_freed_memory"]

BF16_ON_CPU = "some CPUs announce AMX for bf16 and then die of an illegal instruction; fp32 is safe"
_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # M_MMAP_MAX and M_TRIM_THRESHOLD of malloc.h
_torchvision = None  # library of the declared operators, which exist as long as this object


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
    elif where.type == "cuda":
        native = _computes_bf16(where)
        precision, why = ("bf16", "the GPU computes it natively") if native else ("fp32", "no native bf16")
        reason = f"{precision} on {torch.cuda.get_device_name(where)}: {why}"
    else:
        precision, reason = "fp32", f"running in fp32 on {'the CPU' if where.type == 'cpu' else where}"
    if precision == "fp32" and where.type == "cuda":
        # By default cudnn computes convolutions, but not matrix products, in TF32, with 10 of fp32's 23 bits.
        torch.backends.cudnn.allow_tf32 = False
    return Placement(where, precision, reason)


def _computes_bf16(gpu: torch.device) -> bool:
    with torch.cuda.device(gpu):  # torch answers for the current device
        return torch.cuda.is_bf16_supported(including_emulation=False)


def announces_amx() -> bool:
    """Return whether the processor (or an emulator) claims matrix units for bf16. Linux only."""
    try:
        return " amx_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def keep_freed_memory() -> bool:
    """Keep freed memory in this process and its later children. Return False where the C library has no such setting.

    glibc returns large blocks to the system when they are freed. A training step frees its activations and gradients
    and allocates the same sizes a moment later; the kernel then zeroes and maps them page by page. That costs a sixth
    of a small trunk's step on a CPU, 4 % of a ViT-B/32's, and a fifth of the time to decode a photo.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))


def declare_missing() -> bool:
    """Let a torchvision built for CUDA import beside a CPU-only torch. Return whether that was needed.

    Call this before the first import of open_clip, timm or torchvision; it also keeps hub libraries offline. On import
    torchvision registers shape rules for its compiled operators `nms` and `qnms`. Where its compiled library does not
    load, there are no such operators; the import then fails, as do timm and open_clip, which only need the transforms.
    Declaring the two signatures is enough. Calling the operators would still fail; nothing in this project does.
    """
    global _torchvision
    stay_offline()
    if _torchvision is not None:
        return True
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    extensions = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    compiled = importlib.machinery.FileFinder(str(Path(spec.origin).parent), extensions).find_spec("_C")
    if compiled is not None:
        try:
            torch.ops.load_library(compiled.origin)  # torchvision will load the same file
            return False
        except OSError:
            pass
    _torchvision = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        _torchvision.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return True
