"""Tests import open_clip directly; the operators must be declared before that (see torchvision_ops)."""

from dinorankclip.torchvision_ops import declare_missing

declare_missing()
