"""What workers of one call share: a folder beside the output, with the work, their notes and their claims.

    FOLDER/.work-TICKET/work.json       opener and settings of the work, and the identity that every worker must find
    FOLDER/.work-TICKET/notes/WORKER    what a worker has done; rewritten every few seconds, so a worker whose note
                                        stays the same is lost
    FOLDER/.work-TICKET/claims/N        the worker that makes piece N; renamed N.done when the piece is committed

Claims save work and decide nothing: a piece that two workers make is the same piece twice. So no disk needs locks. Each
call begins a new ticket and removes those whose call is over, and workers of a removed ticket stop after their piece.
"""

from __future__ import annotations

import os
import platform
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dinorankclip.checked_files import UnfitFile, file_text, read_object
from dinorankclip.io import write_json, write_text
from dinorankclip.pieces.contract import Pieces, Work
from dinorankclip.system import core_seconds, lives
from dinorankclip.types import UserError, first_line

BEAT = 2.0  # seconds between two notes of a worker
LOST_AFTER = 60.0  # seconds without a new note after which a worker of another machine counts as lost
DAY = 86_400.0  # seconds
BEGINS = 60.0  # seconds within which a call has described the folder that it made
POLL = 0.5  # seconds between looks at claims of others
_DONE = ".done"


@dataclass
class Note:
    """Holds what a worker tells the others: the state of a living one, or how it ended."""

    worker: str
    host: str = field(default_factory=platform.node)
    process: int = field(default_factory=os.getpid)
    beat: int = 0
    pieces: int = 0
    items: float = 0.0
    again: int = 0  # pieces taken over from lost workers
    core_seconds: float = 0.0
    ended: bool = False
    error: str = ""


class Crew:
    """The shared folder of one call."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.notes, self.claims = folder, folder / "notes", folder / "claims"
        self._beats: dict[str, tuple[int, float]] = {}  # worker → its last beat, and when it was first seen here

    @classmethod
    def begin(cls, place: Path, work: Work, identity: str) -> Crew:
        """Make the folder of a new call below `place`, which all workers must see."""
        cls.remove_left(place)
        crew = cls((place / f".work-{uuid.uuid4().hex[:12]}").absolute())
        for folder in (crew.notes, crew.claims):
            folder.mkdir(parents=True)
        leader = {"host": platform.node(), "process": os.getpid()}
        write_json(crew.folder / "work.json", asdict(work) | {"identity": identity, "leader": leader})
        return crew

    @classmethod
    def remove_left(cls, place: Path) -> None:
        """Remove the folders of calls that are over: their leading process has died, or is on another machine and has
        left no sign of life for a day. A call that goes on beside this one keeps its own."""
        for old in place.glob(".work-*"):
            with suppress(OSError, UnfitFile, ValueError):
                if not (old / "work.json").exists() and time.time() - old.stat().st_mtime < BEGINS:
                    continue  # another call is about to write it
                leader = read_object(old / "work.json").get("leader", {})
                if leader.get("host") == platform.node() and lives(int(leader.get("process", 0))):
                    continue
                signs = [path.stat().st_mtime for path in (old / "work.json", *(old / "notes").glob("[!.]*"))]
                if leader.get("host") not in (None, platform.node()) and time.time() - max(signs) < DAY:
                    continue
            cls(old).remove()

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def open_work(self) -> Pieces:
        """Open the pieces in a worker, and refuse other data or another model than the leading process has."""
        host = platform.node()
        try:
            stored = read_object(self.folder / "work.json")
        except (OSError, UnfitFile) as error:
            raise UserError(
                f"{host} cannot open {self.folder} ({first_line(error)}): workers need output, data and model under "
                "the same paths as here, on a disk that all machines share"
            ) from error
        try:
            pieces = Work(stored["opener"], stored["settings"], stored["device"]).open()
        except (UserError, OSError) as error:
            raise UserError(
                f"{host} cannot open the work: {error}. Workers need data and model under the same paths as here"
            ) from error
        if pieces.identity != stored["identity"]:
            raise UserError(
                f"{host} sees another model or other data under the same paths than the process that started it: "
                "make them equal, or put them on a disk that all machines share; --device must be alike, too"
            )
        return pieces

    def read_notes(self) -> list[Note]:
        notes = []
        for path in self.notes.glob("[!.]*"):
            with suppress(OSError, UnfitFile, TypeError):
                notes.append(Note(**read_object(path)))
        return notes

    def is_lost(self, worker: str) -> bool:
        """Return whether a worker ended or no longer writes notes, by this process's clock."""
        try:
            note = Note(**read_object(self.notes / worker))
        except (OSError, UnfitFile, TypeError):
            note = Note(worker, host="")
        if note.ended or (note.host == platform.node() and not lives(note.process)):
            return True
        beat, since = self._beats.get(worker, (-1, 0.0))
        if beat != note.beat:
            beat, since = self._beats[worker] = note.beat, time.monotonic()
        return time.monotonic() - since > LOST_AFTER

    def done(self) -> set[int]:
        with suppress(FileNotFoundError):
            return {int(name.removesuffix(_DONE)) for name in os.listdir(self.claims) if name.endswith(_DONE)}
        return set()

    def claim(self, number: int, worker: str) -> bool | None:
        """Take a piece. Returns False if a living worker has it, None if it is taken over from a lost one."""
        path = self.claims / str(number)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            with suppress(FileNotFoundError):
                holder = file_text(path)
                if holder and not self.is_lost(holder):
                    return False
                write_text(path, worker)
                return None
            return False  # it was done just now
        except FileNotFoundError:
            return False  # the call is over
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(worker)
        if path.with_name(f"{number}{_DONE}").exists():  # it was done since `done` was read
            path.unlink(missing_ok=True)
            return False
        return True

    def mark_done(self, number: int) -> None:
        with suppress(FileNotFoundError):  # another worker was faster, or the call is over
            os.replace(self.claims / str(number), self.claims / f"{number}{_DONE}")


class Worker:
    """A process of a crew: opens the work once, then makes pieces and keeps its note up to date."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self.crew = Crew(folder)
        self.note = Note(name or f"{platform.node()}.{os.getpid()}")
        self._lock = threading.Lock()

    @contextmanager
    def at_work(self) -> Iterator[Worker]:
        """Open the work and write notes from a thread as long as the block lasts."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT):
                self.write_note()

        thread = threading.Thread(target=beat, daemon=True)
        try:
            self.write_note()
            thread.start()
            self.pieces = self.crew.open_work()
            self.sizes = self.pieces.sizes
            yield self
        except Exception as error:
            self.note.error = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            raise
        finally:
            over.set()
            self.note.ended = True
            self.write_note()

    def write_note(self) -> None:
        with self._lock, suppress(OSError):  # the folder vanishes when the call is over
            self.note.beat += 1
            self.note.core_seconds = round(core_seconds([]), 2)
            if self.crew.notes.is_dir():
                write_json(self.crew.notes / self.note.worker, asdict(self.note))

    def make(self, number: int) -> None:
        before = self.note.items

        def advance(items: float) -> None:
            self.note.items += items

        self.pieces.make(number, advance)
        self.note.items = before + self.sizes[number]
        self.note.pieces += 1
        self.write_note()

    def take_share(self, share: int, shares: int) -> None:
        """Make pieces until none is left: first this worker's share, then those of slower or lost workers."""
        missing = self.pieces.missing()
        order = [*missing[share::shares], *(n for at, n in enumerate(missing) if at % shares != share)]
        while self.crew.folder.is_dir():
            done = self.crew.done()
            order = [number for number in order if number not in done]
            if not order:
                return
            for number in order:
                claimed = self.crew.claim(number, self.note.worker)
                if claimed is not False:
                    self.note.again += claimed is None
                    self.make(number)
                    self.crew.mark_done(number)
                    break
            else:
                time.sleep(POLL)


def work_share(folder: str, share: int, shares: int) -> None:
    """Take part in a call from a process of its own."""
    with Worker(Path(folder)).at_work() as worker:
        worker.take_share(share, shares)
