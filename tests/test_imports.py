"""One direction of imports: a module may import only from layers below its own."""

from __future__ import annotations

import ast
from pathlib import Path

LAYERS = [
    {"errors"},
    {"console", "locks", "paths", "process", "sarif"},
    {"targets"},
    {"config"},
    {"explain", "init", "matrix", "schema"},
    {"toolchain"},
    {"staging"},
    {"host"},
    {"audit"},
    {"build"},
    {"fresh", "preflight", "running", "wrapped"},
    {"pipeline"},
    {"audit_cli", "build_meta", "jit", "staging_cli", "toolchain_cli"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports_of(path: Path) -> set[str]:
    """Names of rocmbuild's own modules that a file imports, late imports included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name.split(".")[0] == "rocmbuild")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rocmbuild":
            if node.module == "rocmbuild":
                found.update(f"rocmbuild.{alias.name}" for alias in node.names if not alias.name.startswith("__"))
            else:
                found.add(node.module)
    return found


def layer(dotted: str) -> str:
    return dotted.split(".")[1] if "." in dotted else ""


def modules(root: Path) -> list[Path]:
    return [
        p for p in sorted((root / "rocmbuild").rglob("*.py")) if p.name != "__init__.py" or p.parent.name != "rocmbuild"
    ]


def test_no_import_points_upwards(root: Path) -> None:
    faults = []
    for path in modules(root):
        own = path.relative_to(root / "rocmbuild").with_suffix("").parts[0]
        for dotted in imports_of(path):
            other = layer(dotted)
            if other and other != own and LEVEL[other] >= LEVEL[own]:
                faults.append(f"{path.relative_to(root)} imports {dotted}")
    assert faults == []


def test_no_cycle_within_a_package(root: Path) -> None:
    graph = {}
    for path in modules(root):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        graph[name] = {target for target in imports_of(path) if target != name}
    state: dict[str, int] = {}

    def visit(name: str, trail: list[str]) -> None:
        state[name] = 1
        for target in sorted(graph.get(name, ())):
            if state.get(target) == 1:
                raise AssertionError(" -> ".join([*trail, name, target]))
            if target not in state and target in graph:
                visit(target, [*trail, name])
        state[name] = 2

    for name in graph:
        if name not in state:
            visit(name, [])


def test_the_only_doors(root: Path) -> None:
    """subprocess is imported by process.py alone; print is called by console.py alone."""
    standalone = {
        "build/finder.py",
        "build/front.py",
        "build/recorder.py",
    }  # scripts that run by themselves, without rocmbuild
    for path in modules(root):
        relative = str(path.relative_to(root / "rocmbuild"))
        tree = ast.parse(path.read_text())
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        if relative not in {"process.py"} | standalone:
            assert "subprocess" not in names, relative
        calls = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        if relative not in {"console.py"} | standalone:
            assert "print" not in calls, relative
