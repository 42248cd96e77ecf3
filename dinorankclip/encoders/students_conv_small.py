"""Convolutional students the size of vit-micro, for images of 48 to 64 pixels on two CPU cores (D16).

    resnet-micro      ResNet's residual pairs of 3×3 convolutions (those of its small members: bottlenecks would leave
                      no channels at this size)
    mobilenet-micro   MobileNetV3's inverted residuals: depthwise, squeeze and excitation, hard swish

Both have vit-micro's number of parameters within a tenth, its 64 channels and its cells of 8 pixels, so that the fusion
behind them is the same and a comparison is one of architectures. Norms are GroupNorm, in groups of 8 channels. Tokens
are the cells of the last map, the class token is their mean.

Shapes: B images, S image side, s = ⌈S/8⌉.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .students import CLASSES, StudentFeatures

STRIDE, WIDTH, GROUP_SIZE = 8, 64, 8


class SmallConvStudent(nn.Module):
    def __init__(self, name: str, image_size: int) -> None:
        super().__init__()
        self.net = {"resnet-micro": _resnet, "mobilenet-micro": _mobilenet}[name]()
        self.width = WIDTH
        side = -(-image_size // STRIDE)
        self.grid = (side, side)
        self.classifier_parameters = (WIDTH + 1) * CLASSES

    def forward(self, images: Tensor) -> StudentFeatures:
        # Channels last: on a CPU depthwise convolutions go backward twice as fast.
        tokens = self.net(images.contiguous(memory_format=torch.channels_last)).flatten(2).transpose(1, 2)
        return StudentFeatures(tokens.mean(1), tokens)


def _resnet() -> nn.Sequential:
    """[B, 3, S, S] → [B, 64, s, s]"""
    return nn.Sequential(
        *_convolution(3, 32, 3, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
        _Residual(32, 32),
        _Residual(32, WIDTH, stride=2),
        _Residual(WIDTH, WIDTH),
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
        *_convolution(56, WIDTH, 1),
        nn.Hardswish(inplace=True),
    )


def _convolution(inside: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> tuple[nn.Module, nn.Module]:
    """A convolution that keeps (or halves, rounding up) the sides, and its norm."""
    conv = nn.Conv2d(inside, out, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return conv, nn.GroupNorm(out // GROUP_SIZE, out)


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
    """Widen, filter each channel, weigh channels by what the whole map shows (`squeezed` wide), narrow; added to x
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
