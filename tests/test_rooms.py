"""A room imports only earlier rooms, and the contracts beside them (README, "The tree")."""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "dinorankclip"
ROOMS = (
    "data", "dino", "encoders", "equations", "fusion", "joint", "losses", "optim", "pretrain", "scoring", "serving",
    "study", "writeup", "commands",
)  # fmt: skip


def imported(file: Path) -> set[str]:
    """Rooms that a file imports from, at its top or inside functions."""
    package = ("dinorankclip", *file.relative_to(PACKAGE).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            names = [(*module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            continue
        found |= {name[1] for name in names if name[0] == "dinorankclip" and len(name) > 1}
    return found & set(ROOMS)


def test_the_rooms_are_these():
    assert {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()} == set(ROOMS)


def test_a_room_imports_only_earlier_rooms():
    wrong = []
    for place, room in enumerate(ROOMS):
        for file in sorted((PACKAGE / room).rglob("*.py")):
            later = imported(file) & set(ROOMS[place + 1 :])
            wrong += [f"{file.relative_to(PACKAGE)} imports {name}" for name in later]
    assert wrong == []


def test_the_contracts_import_no_room():
    files = [file for file in PACKAGE.glob("*.py") if file.name not in ("__init__.py", "__main__.py")]
    assert len(files) >= 3 and {file.name: imported(file) for file in files if imported(file)} == {}


def test_equations_stand_alone():
    assert {room for file in (PACKAGE / "equations").rglob("*.py") for room in imported(file)} <= {"equations"}


def test_a_room_says_where_everything_is():
    """The index at the top of a room names every file and folder in it, and no other."""
    for room in ROOMS:
        index = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8")))
        there = {f.name for f in (PACKAGE / room).iterdir() if f.suffix == ".py" and f.name != "__init__.py"}
        there |= {f"{f.parent.name}/" for f in (PACKAGE / room).glob("*/__init__.py")}
        assert set(re.findall(r"\w+(?:\.py|/)", index)) - {"docs/"} == there, room
