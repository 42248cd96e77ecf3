"""The `dinorankclip` command (`drc` for short): finds the verb, imports its module, turns errors into exit codes.

Nothing heavy is imported here, so that help answers at once, and with the core packages alone. The module of a verb has
its name, and a `main(argv)` or a function of that name whose parameters are the flags. Exit codes: 0 done, 2 a mistake
that the user can correct (one line, no traceback), 130 Ctrl-C, 143 SIGTERM. A traceback is a bug of ours.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from dinorankclip import __version__
from dinorankclip.extras import naming_extras
from dinorankclip.hub import ONLINE
from dinorankclip.types import UserError, first_line

_NO_FILES = "this process may not open more files: raise the limit (ulimit -n 4096), or use --reading.workers 0"
_NO_MEMORY = (
    "there is not enough memory ({}): use a smaller --budget.batch, or --budget.chunk, which gives the same gradients; "
    "fewer --reading.workers; a smaller --batch"
)


class Verb(NamedTuple):
    does: str
    example: str  # the words after the verb


VERBS = {
    "data": Verb("make, convert and look at image–caption pairs", "show scenes --out scenes.png"),
    "teacher": Verb(
        "compute a frozen teacher's features of a data set once",
        "cache --data scenes --teacher efficientnet-lite0 --out built/teacher/scenes-lite0",
    ),
    "train": Verb(
        "pretrain or fine-tune a model; the same command again resumes",
        "--preset scenes --method clip --run runs/first",
    ),
    "score": Verb(
        "zero-shot, retrieval, probes and more on evaluation sets, with intervals", "runs/first --sets scenes"
    ),
    "compare": Verb("two scored models side by side: paired differences with intervals", "runs/first runs/second"),
    "study": Verb(
        "many runs at equal pairs and steps, for tables with intervals over seeds; the same command resumes",
        "run small",
    ),
    "report": Verb("write up a run or a study: one HTML file, tables, figures, verdicts", "runs/first"),
    "embed": Verb(
        "embeddings of images and captions, as NumPy and Parquet; the same command again resumes",
        "runs/first --images photos --out embedded/photos",
    ),
    "search": Verb("find photos of a folder by words or by another photo", "runs/first --images photos 'a red mug'"),
    "serve": Verb("answer searches of a folder of photos over HTTP (extra serve)", "runs/first --images photos"),
    "explore": Verb(
        "look inside one model or two on pages: duels, patches, lists, planes, data, runs (extra serve)",
        "runs/first runs/second --data scenes",
    ),
    "export": Verb(
        "a model to give away: for this package, open_clip, transformers, sentence-transformers, ONNX, the browser",
        "runs/first --out exported/first",
    ),
    "push": Verb("upload a model with its card to a hub, after --online", "runs/first owner/first --online"),
    "doctor": Verb("check this machine, a data folder or a run, and say what to do", "runs/first"),
}


_EXTRAS = {"serve": "serve", "explore": "serve", "study": "studies"}  # other verbs need the extra train
# Errors of a disk or a network disk, which no code of ours can cause.
_OF_THE_DISK = {getattr(errno, name, None) for name in ("EIO", "EROFS", "ESTALE", "EFBIG", "ENODEV", "ENXIO")}


def help_text() -> str:
    width = max(map(len, VERBS))
    return "\n".join([
        "usage: dinorankclip VERB …        (drc is the same command)",
        "",
        "CLIP-style pretraining with high-order ranking, dense distillation and fair baselines.",
        "",
        *(f"  {name:<{width}}  {verb.does}" for name, verb in VERBS.items()),
        "",
        "Examples:",
        *(f"  dinorankclip {name} {verb.example}" for name, verb in VERBS.items()),
        "",
        "dinorankclip VERB --help describes a verb and its flags.",
        "dinorankclip --online VERB … lets teachers, --init and push use the hub; else nothing is sent or fetched.",
    ])  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Run the installed command. It ends by SystemExit if the exit code is not 0."""
    argv = sys.argv[1:] if argv is None else argv
    _print_anywhere()
    if argv and argv[0] == "--online":
        os.environ[ONLINE] = "1"  # before any import of a library that can download
        argv = argv[1:]
    try:
        _run(argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `dinorankclip … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        text = in_words(error)
        if text is None:
            raise
        print(f"error: {text}", file=sys.stderr)
        sys.exit(2)


def in_words(error: Exception) -> str | None:
    """Return the message of an error that the user can correct, or that the machine caused; None for a bug of ours."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, MemoryError):
        return _NO_MEMORY.format(first_line(error))
    if isinstance(error, OSError):
        return _of_the_system(error)
    if isinstance(error, RuntimeError):
        return _of_torch(error)
    return None


def _of_the_system(error: OSError) -> str | None:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return _NO_FILES
    if error.errno == errno.ENOMEM:
        return _NO_MEMORY.format(error.strerror)
    full = error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None))
    ours = str(error.filename).startswith(str(Path(__file__).parents[1]))
    if ours or (error.filename is None and not full and error.errno not in _OF_THE_DISK):
        return None  # a file of the package itself
    return _no_room(error) if full else f"{error.filename or 'a file'}: {error.strerror}"


def _of_torch(error: RuntimeError) -> str | None:
    if "Too many open files" in str(error):
        return _NO_FILES
    if any(words in str(error) for words in ("allocate memory", "out of memory", "not enough memory")):
        return _NO_MEMORY.format(first_line(error))
    # torch raises this from a signal handler, wherever the main process happens to be, when a worker dies.
    if "DataLoader worker" not in str(error):
        return None
    from dinorankclip.config import ReadingSettings
    from dinorankclip.data.loader import advice

    return advice(error, ReadingSettings())


def _print_anywhere() -> None:
    """Replace characters that the terminal's encoding lacks (arrows in a Windows code page) instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _run(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(help_text())
        return
    if argv[0] in ("-V", "--version"):
        print(f"dinorankclip {__version__}")
        return
    from dinorankclip.commands.shared import call_verb, did_you_mean, import_studies

    verb = argv[0]
    if verb not in VERBS:
        raise UserError(f"no verb '{verb}': {did_you_mean(verb, VERBS, cutoff=0.5)} (dinorankclip --help)")
    with naming_extras(f"dinorankclip {verb}", _EXTRAS.get(verb, "train")):
        if verb == "study":
            module = import_studies("command")
        else:
            module = importlib.import_module(f"dinorankclip.commands.{verb}")
        if hasattr(module, "main"):
            module.main(argv[1:])
        else:
            call_verb(getattr(module, verb), verb, argv[1:])


def _no_room(error: OSError) -> str:
    """Name the file that a full disk refused, and the place where room must be made."""
    if error.filename is None:
        return f"a file could not be written: {error.strerror}; make room, and give the same command again"
    place = Path(os.fsdecode(error.filename)).absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    return (
        f"{error.filename} could not be written: {error.strerror} ({free / 1e6:.1f} MB are free in {place}); make room "
        "there, and give the same command again"
    )


if __name__ == "__main__":
    main()
