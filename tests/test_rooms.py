"""A room imports only earlier rooms, and the contract files beside them. The order of rooms is stated here alone."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = (
    "losses",
    "pieces",
    "data",
    "teachers",
    "models",
    "train",
    "evaluate",
    "search",
    "report",
    "serve",
    "api",
    "commands",
)
EQUATIONS = ("contrastive", "plackett_luce", "plackett_luce_blocked", "distillation", "resampling")


def imported(file: Path) -> set[str]:
    """Absolute names of all modules of the two packages that a file imports, at its top or inside functions."""
    package = file.relative_to(ROOT).parts[:-1]
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            names |= {".".join((*module, alias.name)) for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.split(".")[0] in ("dinorankclip", "dinorankclip_studies")}


def rooms_of(file: Path) -> set[str]:
    return {name.split(".")[1] for name in imported(file) if name.startswith("dinorankclip.")} & set(ROOMS)


def test_the_rooms_are_these():
    folders = {folder.name for folder in (ROOT / "dinorankclip").iterdir() if (folder / "__init__.py").is_file()}
    assert folders == set(ROOMS)


def test_a_room_imports_only_earlier_rooms():
    wrong = []
    for place, room in enumerate(ROOMS):
        for file in sorted((ROOT / "dinorankclip" / room).rglob("*.py")):
            wrong += [f"{file.relative_to(ROOT)} imports {name}" for name in rooms_of(file) & set(ROOMS[place + 1 :])]
    assert wrong == []


def test_the_contract_files_import_no_room():
    files = [file for file in (ROOT / "dinorankclip").glob("*.py") if file.name not in ("__init__.py", "__main__.py")]
    assert len(files) >= 3 and {file.name: rooms_of(file) for file in files if rooms_of(file)} == {}


def test_equations_import_nothing_but_equations():
    for name in EQUATIONS:
        names = imported(ROOT / "dinorankclip" / "losses" / f"{name}.py")
        assert all(name.startswith("dinorankclip.losses.") for name in names), (name, names)


def test_the_package_never_imports_its_studies():
    files = sorted((ROOT / "dinorankclip").rglob("*.py"))
    assert [file for file in files if any(name.startswith("dinorankclip_studies") for name in imported(file))] == []


@pytest.mark.parametrize("room", [*(f"dinorankclip/{room}" for room in ROOMS), "dinorankclip_studies"])
def test_a_room_says_where_everything_is(room):
    """The index at the top of a room names every file and folder in it, and no other."""
    folder = ROOT / room
    index = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    there = {f.name for f in folder.iterdir() if f.suffix == ".py" and f.name != "__init__.py"}
    there |= {f"{f.parent.name}/" for f in folder.glob("*/__init__.py")}
    assert set(re.findall(r"\w+(?:\.py|/)", index)) - {"docs/"} == there
