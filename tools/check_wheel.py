"""Checks a built wheel (`make check-wheel`): its size, its files, and that torch and numpy are enough for the loss.

    python -m tools.check_wheel dist/dinorankclip-….whl [--release]

Makes two fresh virtual environments under `--env` with pip, by the pins of constraints.txt:
core      the wheel alone. Trains with `RankingLoss`, measures the import, and asks commands which extra they need.
beside    the wheel and open_clip. Trains with `RankingLoss` beside open_clip's own contrastive loss.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("dinorankclip", "dinorankclip_studies")
MOST_BYTES = 2_000_000
PROBE = ROOT / "tools" / "wheel_probe.py"
PLACEHOLDER = "/OWNER/"  # of the repository's address in setup.py


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--env", type=Path, default=ROOT / "built" / "wheel-env", help="folder of the environments")
    parser.add_argument("--release", action="store_true", help="also refuse what must not be published")
    args = parser.parse_args()
    faults = [*file_faults(args.wheel), *(release_faults(args.wheel) if args.release else ())]
    if faults:
        sys.exit("\n".join(f"error: {fault}" for fault in faults))
    print(f"{args.wheel.name}: {args.wheel.stat().st_size:,} bytes, all files of {' and '.join(PACKAGES)}")
    core = environment(args.env / "core", [str(args.wheel)])
    run(core, str(PROBE), "core")
    beside = environment(args.env / "beside", [str(args.wheel), "open_clip_torch", "torchvision"])
    run(beside, str(PROBE), "beside")


def file_faults(wheel: Path) -> list[str]:
    """Compare the files of a wheel with those of the source tree."""
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if name.startswith(tuple(f"{package}/" for package in PACKAGES))}
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    faults = [f"{name} is not in the wheel" for name in sorted(sources - names)]
    faults += [f"{name} is in the wheel and not in the tree: build it again" for name in sorted(names - sources)]
    faults += [f"{package} has no py.typed" for package in PACKAGES if f"{package}/py.typed" not in names]
    if wheel.stat().st_size > MOST_BYTES:
        faults.append(f"{wheel.name} has {wheel.stat().st_size:,} bytes, and at most {MOST_BYTES:,} are wanted")
    return faults


def metadata(wheel: Path) -> dict[str, list[str]]:
    """Return the fields of a wheel's metadata, and its long description as "Description"."""
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        message = Parser().parsestr(packed.read(name).decode("utf-8"))
    fields = {field: [str(value) for value in message.get_all(field, [])] for field in set(message.keys())}
    return fields | {"Description": [str(message.get_payload())]}


def release_faults(wheel: Path) -> list[str]:
    """Return reasons not to publish a wheel."""
    fields = metadata(wheel)
    (version,) = fields["Version"]
    faults = []
    if any(PLACEHOLDER in url for url in fields["Project-URL"]):
        faults.append("the address of the repository is a placeholder: set REPOSITORY in setup.py")
    if f"## {version}" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        faults.append(f"CHANGELOG.md has no section '## {version}'")
    tag = os.environ.get("GITHUB_REF_NAME", f"v{version}")
    if tag != f"v{version}":
        faults.append(f"the tag is {tag}, and the version is {version}")
    return faults


def environment(folder: Path, requirements: list[str]) -> Path:
    """Make a fresh virtual environment with these packages and return its Python."""
    print(f"installing {', '.join(Path(name).name for name in requirements)} into {folder}", flush=True)
    venv.EnvBuilder(clear=True, with_pip=True).create(folder)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    pinned = os.environ | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    subprocess.run(install, env=pinned, check=True)
    return python


def run(python: Path, *words: str) -> None:
    """Run a script in an environment, away from this tree, so that it imports the wheel and not the sources."""
    subprocess.run([str(python), "-I", *words], cwd=python.parent, check=True)


if __name__ == "__main__":
    main()
