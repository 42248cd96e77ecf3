"""Convolutional image students for the ablation: tokens are the cells of the last map, the class token is their mean.

    resnet50, mobilenetv3-large   from timm
    resnet-micro                  ResNet's residual pairs of 3×3 convolutions; for bottlenecks it has too few channels
    mobilenet-micro               MobileNetV3's inverted residuals: depthwise, squeeze and excitation, hard swish

The micro networks have vit-micro's number of parameters within a tenth, its 64 channels and its cells of 8 pixels: the
same fusion follows them, and a comparison is one of architectures. All norms are GroupNorm (D16): BatchNorm would make
a step depend on how the batch is spread over processes.

Shapes: B images, S image side, s = ⌈S/8⌉.
"""

from __future__ import annotations

from typing import Any

import timm
import torch
from torch import Tensor, nn

from dinorankclip.models.students import CLASSES, StudentFeatures

_IN_TIMM = {"resnet50": "resnet50", "mobilenetv3-large": "mobilenetv3_large_100"}
_MOBILENET_HEAD = 1280  # MobileNetV3 widens its pooled features before classifying; the student leaves that out
_LEAST_GRID = 7
_GROUPS, _GROUP_SIZE = 32, 8
_STRIDE, _WIDTH = 8, 64  # of the micro networks


class ConvStudent(nn.Module):
    """A timm network, which maps images [B, 3, S, S] to a list of maps."""

    def __init__(self, net: nn.Module, width: int, image_size: int, stride: int) -> None:
        super().__init__()
        self.net = net
        self.width = width
        side = -(-image_size // stride)
        self.grid = (side, side)
        self.classifier_parameters = (width + 1) * CLASSES

    def forward(self, images: Tensor) -> StudentFeatures:
        tokens = self.net(images)[-1].flatten(2).transpose(1, 2)
        return StudentFeatures(tokens.mean(1), tokens)


class _MicroStudent(ConvStudent):
    """A network that maps images to one map."""

    def forward(self, images: Tensor) -> StudentFeatures:
        # Channels last: on a CPU depthwise convolutions go backward twice as fast.
        tokens = self.net(images.contiguous(memory_format=torch.channels_last)).flatten(2).transpose(1, 2)
        return StudentFeatures(tokens.mean(1), tokens)


def conv_student(name: str, image_size: int) -> ConvStudent:
    """The student called `name`, with weights drawn from torch's current generator."""
    if name not in _IN_TIMM:
        net = {"resnet-micro": _resnet, "mobilenet-micro": _mobilenet}[name]()
        return _MicroStudent(net, _WIDTH, image_size, _STRIDE)
    stride = stride_for(image_size)
    network: Any = timm.create_model(_IN_TIMM[name], features_only=True, out_indices=(4,), output_stride=stride)
    width = network.feature_info.channels()[-1]
    student = ConvStudent(_with_group_norm(network), width, image_size, stride)
    if name == "mobilenetv3-large":
        student.classifier_parameters = (width + 1) * _MOBILENET_HEAD + (_MOBILENET_HEAD + 1) * CLASSES
    return student


def stride_for(image_size: int) -> int:
    """32 as usual if that leaves 7×7 cells; else 16 or 8, by dilation of the last stages."""
    return next((stride for stride in (32, 16) if image_size // stride >= _LEAST_GRID), 8)


def _with_group_norm(module: nn.Module) -> nn.Module:
    """Replace every batch norm in place, keeping its scale, shift and activation."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, _GroupNorm(child))
        else:
            _with_group_norm(child)
    return module


class _GroupNorm(nn.GroupNorm):
    """32 groups where they divide the channels, else groups of 8 channels (MobileNet has 24, 40, 72, …)."""

    def __init__(self, batch_norm: nn.BatchNorm2d) -> None:
        channels = batch_norm.num_features
        super().__init__(_GROUPS if channels % _GROUPS == 0 else channels // _GROUP_SIZE, channels)
        # timm starts a residual branch with scale 0; the copy keeps that.
        self.weight, self.bias = batch_norm.weight, batch_norm.bias
        self.act = getattr(batch_norm, "act", nn.Identity())  # timm's batch norms may include their activation

    def forward(self, x: Tensor) -> Tensor:
        return self.act(super().forward(x))


def _resnet() -> nn.Sequential:
    """[B, 3, S, S] → [B, 64, s, s]"""
    return nn.Sequential(
        *_convolution(3, 32, 3, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
        _Residual(32, 32),
        _Residual(32, _WIDTH, stride=2),
        _Residual(_WIDTH, _WIDTH),
    )


def _mobilenet() -> nn.Sequential:
    """[B, 3, S, S] → [B, 64, s, s]"""
    return nn.Sequential(
        *_convolution(3, 16, 3, stride=2),
        nn.Hardswish(inplace=True),
        _Inverted(16, 24, 16, 3, stride=2),
        _Inverted(24, 56, 72, 5, stride=2, squeezed=24),
        _Inverted(56, 56, 256, 5, squeezed=64),
        _Inverted(56, 56, 256, 5, squeezed=64),
        *_convolution(56, _WIDTH, 1),
        nn.Hardswish(inplace=True),
    )


def _convolution(inside: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> tuple[nn.Module, nn.Module]:
    """A convolution that keeps the sides (or halves them, rounding up), and its norm."""
    conv = nn.Conv2d(inside, out, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return conv, nn.GroupNorm(out // _GROUP_SIZE, out)


class _Residual(nn.Module):
    """relu(x + two 3×3 convolutions of x); x goes through a 1×1 convolution where shapes differ."""

    def __init__(self, inside: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *_convolution(inside, out, 3, stride), nn.ReLU(inplace=True), *_convolution(out, out, 3)
        )
        same = inside == out and stride == 1
        self.straight = nn.Identity() if same else nn.Sequential(*_convolution(inside, out, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return (self.straight(x) + self.branch(x)).relu_()


class _Inverted(nn.Module):
    """Widen, filter each channel, weigh channels by their means over the map (`squeezed` wide), narrow; added to x
    where shapes agree."""

    def __init__(self, inside: int, out: int, wide: int, kernel: int, stride: int = 1, squeezed: int = 0) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *_convolution(inside, wide, 1),
            nn.Hardswish(inplace=True),
            *_convolution(wide, wide, kernel, stride, groups=wide),
            nn.Hardswish(inplace=True),
            _Excitation(wide, squeezed) if squeezed else nn.Identity(),
            *_convolution(wide, out, 1),
        )
        self.adds = inside == out and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x) if self.adds else self.branch(x)


class _Excitation(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.Linear(channels, squeezed), nn.ReLU(inplace=True), nn.Linear(squeezed, channels), nn.Hardsigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weigh(x.mean((2, 3)))[:, :, None, None]
