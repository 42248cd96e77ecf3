"""The smallest work in pieces: file N holds N². Some pieces kill or fail the worker that makes them first."""

import contextlib
import os
import signal
import time
from pathlib import Path

from dinorankclip.io import write_text
from dinorankclip.pieces.contract import Pieces, Work
from dinorankclip.types import UserError

OPENER = "tests.pieces.squares:open_work"


class Squares(Pieces):
    title, unit = "squares", "number"

    def __init__(self, folder, count=6, kills=(), fails=(), seconds=0.0, data=""):
        self.folder, self.count, self.kills, self.fails, self.seconds = Path(folder), count, kills, fails, seconds
        self.identity, self.gathered, self.prepared = f"squares {data}", 0, 0

    @property
    def sizes(self):
        return [10] * self.count

    def missing(self):
        return [number for number in range(self.count) if not (self.folder / str(number)).exists()]

    def prepare(self):
        self.prepared += 1

    def make(self, number, progress):
        time.sleep(self.seconds)
        progress(4)
        if number in self.kills:
            with contextlib.suppress(FileExistsError):
                (self.folder / f"killed {number}").mkdir()
                os.kill(os.getpid(), signal.SIGKILL)
        if number in self.fails:
            raise UserError(f"{number} has no square")
        progress(6)
        write_text(self.folder / str(number), str(number**2))

    def gather(self):
        self.gathered += 1


def work(folder, **settings) -> Work:
    return Work(OPENER, {"folder": str(folder), **settings}, "cpu")


def open_work(settings) -> Squares:
    if not Path(settings["folder"]).is_dir():
        raise UserError(f"there is no {settings['folder']}")
    return Squares(**settings)


def read(folder) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(folder).iterdir() if path.is_file()}


def squares(count=6) -> dict[str, str]:
    return {str(number): str(number**2) for number in range(count)}
