"""Puts packages with entry points on the path, as `pip install` would, for tests of plug-ins."""

import tomllib
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"


def dist_info(folder: Path, name: str, version: str, groups: dict[str, dict[str, str]]) -> Path:
    """Write the metadata of an installed package into a folder, which then goes onto the path."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def example_path(folder: Path) -> list[str]:
    """The folders that make the example importable and its entry points known."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    return [str(EXAMPLE), str(dist_info(folder, project["name"], project["version"], project["entry-points"]))]
