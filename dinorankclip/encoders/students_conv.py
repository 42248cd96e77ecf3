"""Convolutional image students for the ablation: ResNet-50 and MobileNetV3-Large, from timm, with GroupNorm (D16).

BatchNorm would make a step depend on how the batch is spread over processes. Tokens are the cells of the last map,
the class token is their mean. For small images the last stages are dilated instead of strided, so that the map
keeps at least about 7×7 cells.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dinorankclip.torchvision_ops import declare_missing

from .students import CLASSES, StudentFeatures

_IN_TIMM = {"resnet50": "resnet50", "mobilenetv3-large": "mobilenetv3_large_100"}
_MOBILENET_HEAD = 1280  # MobileNetV3 widens its pooled features before classifying; the student has no use for that
_LEAST_GRID = 7
_GROUPS, _GROUP_SIZE = 32, 8


class ConvStudent(nn.Module):
    def __init__(self, name: str, image_size: int) -> None:
        super().__init__()
        declare_missing()
        import timm

        stride = stride_for(image_size)
        net: Any = timm.create_model(_IN_TIMM[name], features_only=True, out_indices=(4,), output_stride=stride)
        self.net = with_group_norm(net)
        self.width: int = net.feature_info.channels()[-1]
        side = -(-image_size // stride)
        self.grid = (side, side)
        self.classifier_parameters = (self.width + 1) * CLASSES
        if name == "mobilenetv3-large":
            self.classifier_parameters = (self.width + 1) * _MOBILENET_HEAD + (_MOBILENET_HEAD + 1) * CLASSES

    def forward(self, images: Tensor) -> StudentFeatures:
        tokens = self.net(images)[-1].flatten(2).transpose(1, 2)
        return StudentFeatures(tokens.mean(1), tokens)


def stride_for(image_size: int) -> int:
    """32 as usual if that leaves 7×7 cells, else 16 or 8."""
    return next((stride for stride in (32, 16) if image_size // stride >= _LEAST_GRID), 8)


def with_group_norm(module: nn.Module) -> nn.Module:
    """Replace every batch norm in place, keeping its scale, shift and activation."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, _GroupNorm(child))
        else:
            with_group_norm(child)
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
