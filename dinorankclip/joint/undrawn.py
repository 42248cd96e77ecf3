"""Build a model whose weights are about to be loaded without drawing random ones first.

Drawing the weights of a ViT-B/32 takes seconds, reading them a fraction of one. Inside `Undrawn()` draws give zeros,
and other tensors hold what memory held: only for a model into which every weight is then loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# erfinv_ turns uniform draws into truncated normals.
_FILLS = {Tensor.normal_, Tensor.uniform_, Tensor.erfinv_}


class Undrawn(TorchFunctionMode):
    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _FILLS:
            return args[0].zero_()  # not left as it is: torch draws a truncated normal again until all values fit
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        if function is torch.randn:
            function = torch.empty
        return function(*args, **kwargs)
