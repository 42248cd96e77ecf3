"""Records of the benches, `NAME-DATE.json` and `.md` in one folder."""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path

FOLDERS = ("cache", "data", "out", "pairs")  # options that may be paths


def today() -> str:
    return datetime.date.today().isoformat()


def told(options: argparse.Namespace) -> dict[str, object]:
    """Options as a record tells them: of folders the names, not the paths, since it may be published."""
    return {key: Path(value).name if value and key in FOLDERS else value for key, value in vars(options).items()}


def write_dated(out: Path, name: str, date: str, record: object, text: str) -> None:
    """The text is printed, too."""
    written = write_json(out, name, date, record)
    written.with_suffix(".md").write_text(text.rstrip() + "\n")
    print(f"\n{text.rstrip()}\n\nwritten to {written} and .md")


def write_json(out: Path, name: str, date: str, record: object) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"{name}-{date}.json"
    target.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return target


def newest(folder: Path, name: str) -> dict:
    """Dates in the names sort; `NAME-quick` is another name."""
    kept = sorted(folder.glob(f"{name}-2*.json"))
    if not kept:
        raise SystemExit(f"no record of {name} in {folder}")
    return json.loads(kept[-1].read_text())
