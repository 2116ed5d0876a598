"""Which package may import which: every import of every module, also inside functions, against one table."""

import ast
from collections.abc import Iterator
from pathlib import Path

import gdod

ROOT = Path(gdod.__file__).parent

LEAVES = {"errors", "_checks", "_files", "statistics", "schema", "yaml_toml"}
DATA = {"data.tables", "data.parts", "data.preparing", "data.sets"}

# From each package to those it may import. A package's `__init__` is its door: it shows what the package and its
# own sub-packages hold, and nothing inside the package goes through it.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "_checks": {"errors"},
    "_files": {"errors"},
    "statistics": {"errors", "_checks"},
    "schema": {"errors", "_checks"},
    "yaml_toml": {"errors"},
    "ranks": {"errors"},
    "_kernels": set(),
    "rows": {"errors", "_checks", "_kernels"},
    "rows.distributed": {"errors", "ranks", "rows"},
    "methods": {"errors", "_checks", "_kernels"},
    "methods.torchjd": {"errors", "_checks", "methods"},
    "_backward": {"errors", "ranks", "rows", "rows.distributed", "methods"},
    "models": LEAVES,
    "data.tables": LEAVES,
    "data.parts": LEAVES,
    "data.preparing": {*LEAVES, "data.tables", "data.parts"},
    "data.sets": {*LEAVES, "data.tables", "data.preparing"},
    "data": {*LEAVES, *DATA},
    "training": {*LEAVES, "ranks", "data", *DATA, "models", "methods", "_backward"},
    "estimator": {*LEAVES, "training", "data", "data.tables"},
    "serving": {*LEAVES, "training", "data.tables", "data.preparing"},
    "report": LEAVES,
    "experiments": {*LEAVES, "ranks", "report", "training", "data", "data.sets", "methods", "methods.torchjd"},
    "experiments.paper": {*LEAVES, "experiments", "report", "training", "data", "data.sets", "methods"},
}
# The command line and the door of the library may use everything.
ABOVE_ALL = {"cli", "__main__", "gdod"}


def package_of(module: str) -> str:
    """Return the package of a module, without "gdod.": the longest name in the table that it lies in."""
    parts = module.split(".")[1:]
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in ALLOWED or name in ABOVE_ALL:
            return name
    return "gdod"


def imports(path: Path) -> Iterator[str]:
    """Yield what a file imports from this library, as full names of modules or of names in them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "gdod")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import; write the whole name"
            if node.module and node.module.split(".")[0] == "gdod":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules() -> Iterator[tuple[str, Path]]:
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def edges() -> Iterator[tuple[str, str, str]]:
    """Yield every import between packages: from package, to package, and where it stands."""
    for module, path in modules():
        package = package_of(module)
        own = f"{module}." if path.name == "__init__.py" else None
        for target in imports(path):
            other = package_of(target)
            if other != package and not (own and target.startswith(own)):
                yield package, other, f"{path.relative_to(ROOT)} imports {target}"


def test_packages_import_only_what_the_table_allows() -> None:
    wrong = [where for package, other, where in edges() if package not in ABOVE_ALL and other not in ALLOWED[package]]
    assert not wrong, "\n".join(wrong)


def test_the_table_has_every_package_and_no_edge_that_is_not_there() -> None:
    assert {package_of(module) for module, _ in modules()} == {*ALLOWED, *ABOVE_ALL}
    allowed = {(package, other) for package, others in ALLOWED.items() for other in others - LEAVES}
    assert not allowed - {(package, other) for package, other, _ in edges()}


def test_there_is_no_cycle_between_packages() -> None:
    left = {package: set(others) for package, others in ALLOWED.items()}
    while left:
        lowest = [package for package, others in left.items() if not others & left.keys()]
        assert lowest, f"a cycle among {sorted(left)}"
        for package in lowest:
            del left[package]


def test_nothing_goes_through_the_door_of_its_own_package() -> None:
    for module, path in modules():
        if path.name != "__init__.py":
            doors = {".".join(module.split(".")[:length]) for length in range(2, module.count(".") + 1)}
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module in doors:
                    folder = ROOT.parent / node.module.replace(".", "/")
                    inner = [alias.name for alias in node.names if not _is_module(folder / alias.name)]
                    assert not inner, f"{path}: from {node.module} import {', '.join(inner)}; name the module"


def _is_module(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_the_root_is_not_a_drawer() -> None:
    files = sorted(path.name for path in ROOT.iterdir() if path.is_file())
    assert len(files) <= 9, files
