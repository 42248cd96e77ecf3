"""Print a bill of materials of the installed packages, as CycloneDX 1.6 JSON.

    python -m tools.bill_of_materials > sbom.json

It lists what `dinorankclip` needs, with all its extras, and what those packages need in turn. Nothing is asked over the
network: names, versions and licences are those of the installed metadata.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from dinorankclip import __version__

ROOT = "dinorankclip"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed() -> dict[str, Distribution]:
    """Return the installed distributions that the package needs, directly or not, by name."""
    found: dict[str, Distribution] = {}
    waiting = [ROOT]
    while waiting:
        name = normalised(waiting.pop())
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # an extra, or a package of another system, that is not installed here
        requirements = found[name].requires or []
        own_extras = name == ROOT
        waiting += [
            match[0] for line in requirements if (own_extras or "extra ==" not in line) and (match := _NAME.match(line))
        ]
    return {name: found[name] for name in sorted(found) if name != ROOT}


def component(name: str, package: Distribution) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version}",
    }
    licence = package.metadata.get("License-Expression") or (package.metadata.get("License") or "").strip()
    if licence and "\n" not in licence:
        entry["licenses"] = [{"license": {"name": licence}}]
    return entry


def bill() -> dict[str, Any]:
    about = {"component": {"type": "application", "name": ROOT, "version": __version__}}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": about,
        "components": [component(name, package) for name, package in needed().items()],
    }


if __name__ == "__main__":
    print(json.dumps(bill(), indent=2))
