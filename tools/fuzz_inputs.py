"""Damage every kind of file that the project reads, and count what its readers do with it.

    python -m tools.fuzz_inputs [--examples 300] [--seed 0] [--only run/config.json data/ …]

Each file of a small run, cache, export, collection, study and data set is damaged many times: bytes flipped, cut,
repeated or replaced, and in JSON files values of other types, missing entries, deep nesting and bytes that are no
UTF-8. Each time its readers run; damaged samples of data are counted, and are part of what a reader gives. The outcome
is one of

    refused     a `UserError` in words
    healed      the reader made the file again, or did without it, and gives what the undamaged file gave
    noted       the reader did without a part of the file, and said so in a warning
    unchanged   the reader gives what the undamaged file gave: the damage touched nothing that it reads
    other       the reader gives other values of the right shape, e.g. another number; only a checksum can tell
    lost        any other exception, a reader that takes longer than `PATIENCE`, or other values in spite of a checksum

Files are as this version writes them, with checksums. With --old they are those of version 0.1, which had none

and the program ends with status 1 if anything is lost, after printing the seed of the case.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

CHECKSUMS = ("checksum", "crc32")  # entries of a sealed file, and of a line of a log
PATIENCE = 20  # seconds
OUTCOMES = ("refused", "healed", "unchanged", "noted", "other", "lost")
ODD_VALUES: list[Any] = [
    None, True, False, -1, 0, 2**70, -(2**63), 1e308, float("nan"), float("inf"), "", "x", "\ud800", "pipe:false",
    "hf-hub:a/b", [], {}, [[]], [1, "a", None], {"a": {"b": []}}, "9" * 5000,
]  # fmt: skip


class Kind(NamedTuple):
    """A kind of file: its place under the folder of examples, and what reads it."""

    path: str
    read: Callable[[Path], Any]
    heals: bool = False  # readers do without the file
    checked: bool = False  # other values than the original's are a loss: the file has a checksum, or readers heal it


# --- damage


def damaged(data: bytes, draws: random.Random, is_json: bool) -> bytes:
    """Return a damaged copy of a file's bytes."""
    if is_json and draws.random() < 0.6:
        with contextlib.suppress(ValueError):
            return _damaged_json(data, draws)
    return _damaged_bytes(data, draws)


def _damaged_bytes(data: bytes, draws: random.Random) -> bytes:
    changed = bytearray(data)
    way = draws.randrange(8)
    if way == 0 or not changed:
        return bytes(draws.randrange(256) for _ in range(draws.randrange(40)))
    at = draws.randrange(len(changed))
    span = slice(at, at + 1 + draws.randrange(min(64, len(changed))))
    if way == 1:
        return bytes(changed[:at])
    if way == 2:
        changed[span] = bytes(len(changed[span]))
    elif way == 3:
        changed[at:at] = changed[span] * draws.randrange(1, 4)
    elif way == 4:
        del changed[span]
    elif way == 5:
        changed[span] = bytes(draws.randrange(256) for _ in range(len(changed[span])))
    else:
        for _ in range(draws.choice((1, 1, 2, 8))):
            changed[draws.randrange(len(changed))] ^= 1 << draws.randrange(8)
    return bytes(changed)


def _damaged_json(data: bytes, draws: random.Random) -> bytes:
    lines = data.split(b"\n")
    records = [line for line in lines if line.startswith(b'{"')] if len(lines) > 1 else []
    if records and not data.startswith(b"{\n"):  # a file of lines: one of them is damaged
        at = draws.randrange(len(records))
        records[at] = _damaged_json(records[at], draws)
        return b"\n".join(records) + b"\n"
    way = draws.randrange(10)
    if way == 0:
        return draws.choice([b"[" * 100_000, b'{"a":' * 50_000, b"[]", b"null", b"3", b'"text"', b"\xff{}", b""])
    value = json.loads(data)
    holders = [holder for holder in _holders(value) if holder]
    for _ in range(draws.choice((1, 1, 3))):
        holder = draws.choice(holders)
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = draws.choice(
            [key for key in keys if key not in CHECKSUMS] or [0]
        )  # who removes it means to change the file
        if isinstance(holder, dict) and key not in holder:
            continue
        if way == 1 and isinstance(holder, dict):
            holder.pop(key, None)
        elif way == 2 and isinstance(holder, dict):
            holder[draws.choice(["", "x", "__class__", "hf_model_name", "a" * 300])] = draws.choice(ODD_VALUES)
        elif len(holder):
            holder[key] = copy.deepcopy(draws.choice(ODD_VALUES))
        holders = [holder for holder in _holders(value) if holder]
        if not holders:
            break
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)


# --- one case


class _TooLong(BaseException):
    pass


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _TooLong(f"more than {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _warned() -> Iterator[list[str]]:
    """Yield a list to which warnings of the project's log are added."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("dinorankclip")
    log.addHandler(handler)
    try:
        yield messages
    finally:
        log.removeHandler(handler)


def outcome(kind: Kind, folder: Path, expected: str) -> tuple[str, str]:
    """Run the readers of a damaged file; return one of `OUTCOMES` and a remark."""
    from dinorankclip.types import UserError

    try:
        with _limited(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), _warned() as messages:
            warnings.simplefilter("ignore")
            result = repr(kind.read(folder))
    except UserError as error:
        return ("refused", str(error)) if len(str(error)) > 10 else ("lost", "a UserError without words")
    except (Exception, _TooLong):
        return "lost", traceback.format_exc()
    if result == expected:
        return ("healed" if kind.heals else "unchanged"), ""
    if any(Path(kind.path).name in message for message in messages):
        return "noted", ""
    return ("lost" if kind.checked else "other"), f"{result[:300]} instead of {expected[:300]}"


def fuzz(kinds: list[Kind], folder: Path, examples: int, seed: int) -> tuple[dict[str, Counter[str]], list[str]]:
    """Damage each kind of file `examples` times; return counts by path, and the cases that were lost."""
    table: dict[str, Counter[str]] = {}
    lost: list[str] = []
    for kind in kinds:
        counts = table.setdefault(kind.path, Counter())
        path = folder / kind.path
        with contextlib.chdir(folder):  # paths in the files are relative to it
            expected = repr(kind.read(folder))
            original = path.read_bytes()
            for number in range(examples):
                draws = random.Random(f"{seed} {kind.path} {number}")
                path.write_bytes(damaged(original, draws, path.suffix in (".json", ".jsonl")))
                os.utime(path, ns=(number, number))
                result, remark = outcome(kind, folder, expected)
                counts[result] += 1
                if result == "lost":
                    lost.append(f"{kind.path}, seed {seed}, example {number}: {remark}")
                path.write_bytes(original)
    return table, lost


def table_text(table: dict[str, Counter[str]]) -> str:
    rows = [("file", "tried", *OUTCOMES)]
    rows += [(path, str(counts.total()), *(str(counts[name]) for name in OUTCOMES)) for path, counts in table.items()]
    total = sum(table.values(), Counter())
    rows.append(("all", str(total.total()), *(str(total[name]) for name in OUTCOMES)))
    width = max(len(row[0]) for row in rows)
    return "\n".join(f"{row[0]:<{width}}" + "".join(f"{cell:>11}" for cell in row[1:]) for row in rows)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=300, help="damaged copies of each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--old", action="store_true", help="files of version 0.1, which have no checksums")
    parser.add_argument("--record", type=Path, default=None, help="a folder for fuzzed-files-DATE.json and .md")
    parser.add_argument("--only", nargs="*", default=None, help="beginnings of paths, e.g. run/scores.json data/")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["DINORANKCLIP_HOME"] = str(Path(scratch, "home"))
        from tools.fuzzed_data import data_kinds, prepare_data
        from tools.fuzzed_files import prepare, project_kinds

        folder = prepare(Path(scratch, "files"), options.old)
        prepare_data(folder)
        kinds = [*project_kinds(options.old), *data_kinds(folder)]
        kinds = [kind for kind in kinds if options.only is None or kind.path.startswith(tuple(options.only))]
        table, lost = fuzz(kinds, folder, options.examples, options.seed)
        shutil.rmtree(folder)
    if options.record is None:
        print(table_text(table))
    else:
        from bench.harness import today, write_dated

        text = "# Fuzzed files\n\n`python -m tools.fuzz_inputs --examples {examples} --seed {seed}`".format(
            **vars(options)
        )
        record = {"examples": options.examples, "seed": options.seed, "files": table}
        write_dated(options.record, "fuzzed-files", today(), record, f"{text}\n\n```\n{table_text(table)}\n```")
    for case in lost[:20]:
        print(f"\nlost: {case}", file=sys.stderr)
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
