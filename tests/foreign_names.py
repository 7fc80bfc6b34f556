"""Finds private names of other libraries in product code, by reading it: nothing is imported.

What is private: a name with one leading underscore that our own classes do not define, whatever object it is asked of
and whether it is written as an attribute or as a string for getattr; and what is imported from the inside of a library.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("hotdelta", "exporter", "loader", "server")

# From here on a library makes no promises; of uvicorn only what the package itself exports is documented.
_INSIDES = re.compile(
    r"tensorflow\.(python|core|compiler|lite)\b|keras\.src\b|uvicorn\.|watchdog\.observers\.inotify"
    r"|(starlette|fastapi|httptools|uvloop|numpy|orjson|httpx)\..*\b_"
)
# Private by their spelling alone: the standard library documents the first and has no other names for the others.
_DOCUMENTED = frozenset({"os._exit", "argparse._SubParsersAction", "parser._actions"})
_ASKING = frozenset(
    {"getattr", "hasattr", "setattr", "delattr", "__setattr__", "__delattr__", "__getattribute__"}
)


@dataclass(frozen=True, slots=True)
class Finding:
    module: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.name}"


def find_foreign_names(root: Path, *, known: Collection[str], adapters: Collection[str]) -> list[Finding]:
    """In all product modules below `root`, apart from the adapters.

    `known`: private names of libraries that are flagged as strings, too, and where a class of ours has one of the same
    name; those among them without an underscore are flagged wherever they are an attribute.
    """
    house = House(root)
    modules = [module for name, module in sorted(house.modules.items()) if name not in adapters]
    return [found for module in modules for found in _in_module(house, module, frozenset(known))]


@dataclass(slots=True)
class Module:
    name: str
    tree: ast.Module
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)


class House:
    """All product modules, with the classes that each defines and imports."""

    def __init__(self, root: Path) -> None:
        self.modules = {module.name: module for module in _read(root)}
        self._names: dict[ast.ClassDef, set[str]] = {}

    def names_of(self, module: Module, definition: ast.ClassDef) -> set[str]:
        """What a class and those of its bases that are ours define."""
        if definition not in self._names:
            self._names[definition] = _defined_in(definition) | self.names_of_bases(module, definition)
        return self._names[definition]

    def names_of_bases(self, module: Module, definition: ast.ClassDef) -> set[str]:
        found: set[str] = set()
        for base in definition.bases:
            expression = base.value if isinstance(base, ast.Subscript) else base
            home, name = module, ast.unparse(expression).rpartition(".")[2]
            if name in module.imported and name not in module.classes:
                source, name = module.imported[name]
                home = self.modules.get(source, module)
            if name in home.classes and home.classes[name] is not definition:
                found |= self.names_of(home, home.classes[name])
        return found


def _read(root: Path) -> Iterator[Module]:
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            module = Module(name, ast.parse(path.read_text()))
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef):
                    module.classes[node.name] = node
                    module.defined |= _defined_in(node)
                elif isinstance(node, ast.ImportFrom):
                    source = node.module or ""
                    module.imported.update(
                        {each.asname or each.name: (source, each.name) for each in node.names}
                    )
            yield module


def _defined_in(definition: ast.ClassDef) -> set[str]:
    """Methods, fields, slots, and every attribute that a method sets on `self` or `cls`."""
    found: set[str] = set()
    for statement in definition.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(statement.name)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            # Without a value it only tells the type of what a base may have made, unless it is a field.
            if statement.value is not None or definition.decorator_list:
                found.add(statement.target.id)
        elif isinstance(statement, ast.Assign):
            found |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
            found |= {text for each in ast.walk(statement.value) if (text := _text(each))}
    for node in ast.walk(definition):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            found.add(node.attr)
    return found


def _in_module(house: House, module: Module, known: frozenset[str]) -> Iterator[Finding]:
    for node, around in _walk(module.tree, None):
        for name in _private_names(house, module, node, around, known):
            yield Finding(module.name, getattr(node, "lineno", 0), name)


def _walk(node: ast.AST, around: ast.ClassDef | None) -> Iterator[tuple[ast.AST, ast.ClassDef | None]]:
    """Every node with the class that it is in."""
    for child in ast.iter_child_nodes(node):
        yield child, around
        yield from _walk(child, child if isinstance(child, ast.ClassDef) else around)


def _private_names(
    house: House, module: Module, node: ast.AST, around: ast.ClassDef | None, known: frozenset[str]
) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names if _is_inside(each.name))
    elif isinstance(node, ast.ImportFrom):
        yield from (path for each in node.names if _is_inside(path := f"{node.module}.{each.name}"))
    elif isinstance(node, ast.Attribute):
        if _is_foreign(house, module, node, around, known):
            yield ast.unparse(node)
    elif isinstance(node, ast.Call) and _last_name(node.func) in _ASKING:
        texts = map(_text, node.args[1:2])
        yield from (text for text in texts if _is_private(text) and not _is_ours(text, module, known))
    elif _is_private(text := _text(node)) and text in known:
        yield repr(text)


def _is_foreign(
    house: House, module: Module, node: ast.Attribute, around: ast.ClassDef | None, known: frozenset[str]
) -> bool:
    name = node.attr
    if not _is_private(name):
        return name in known
    if ast.unparse(node) in _DOCUMENTED:
        return False
    is_super = ast.unparse(node.value) == "super()"
    if around is not None and is_super:
        return name not in house.names_of_bases(module, around)
    if around is not None and _is_own(node.value):
        return name not in house.names_of(module, around)
    return not _is_ours(name, module, known)


def _is_ours(name: str, module: Module, known: frozenset[str]) -> bool:
    return name.startswith("_hotdelta") or (name in module.defined and name not in known)


def _is_inside(path: str) -> bool:
    return path.partition(".")[0] not in PACKAGES and bool(_INSIDES.match(path))


def _is_private(name: str) -> bool:
    return bool(re.fullmatch(r"_[A-Za-z]\w*", name))


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
