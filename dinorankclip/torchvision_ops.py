"""Let a CUDA-built torchvision import beside a CPU-only torch.

torchvision's Python code registers shape rules for two of its compiled operators (`nms`, `qnms`) while
it is being imported. If its compiled library cannot be loaded (a wheel built for CUDA beside a CPU build of
torch), these operators do not exist and the import fails, and with it timm and open_clip, which only need
torchvision's transforms. Declaring the two signatures is enough for the import; calling `ops.nms` would still
fail, and nothing in this project calls it.

Call `declare_missing()` before the first import of open_clip, timm or torchvision.
"""

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
