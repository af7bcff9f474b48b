"""How the package reads: calls with one caller, depth of calls, comments, reach.

    python benchmarks/structure.py

Static: a call counts where names and imports say which function it is of, or where one
class alone has a method of that name. What runs only through a value is not followed.
"""

import argparse
import ast
import json
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from record import add_record_option, row, write_result

ROOT = Path(__file__).resolve().parent.parent
START = ("jaxdist.launch.cli.commands.train", "run")
Function = tuple[str, str]
"""Module and name; a method's is CLASS.NAME."""


@dataclass
class Source:
    """Modules, what they define and what they import."""

    texts: dict[str, str] = field(default_factory=dict)
    definitions: dict[Function, ast.AST] = field(default_factory=dict)
    imports: dict[str, dict[str, tuple[str, str | None]]] = field(default_factory=dict)
    methods: dict[str, list[Function]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def resolve(self, module: str, name: str, depth: int = 9) -> Function | None:
        """Return what a name stands for: a definition, or ("module", its name)."""
        if (module, name) in self.definitions:
            return module, name
        base, inner = self.imports.get(module, {}).get(name, (None, None))
        if base is None or inner is None or not depth:
            return None
        if f"{base}.{inner}" in self.texts:
            return "module", f"{base}.{inner}"
        return self.resolve(base, inner, depth - 1) if base in self.texts else None


def read_source() -> Source:
    """Read every module of the package, each once."""
    source = Source()
    paths = [p for p in ROOT.glob("jaxdist/**/*.py") if not p.is_symlink()]
    for room in ("meshes", "models", "input", "launch"):
        paths += (ROOT / room).rglob("*.py")
    for path in sorted(set(map(Path.resolve, paths))):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts if parts[0] == "jaxdist" else ("jaxdist", *parts)
        module = ".".join(parts).removesuffix(".__init__")
        source.texts[module] = path.read_text(encoding="utf-8")
        tree = ast.parse(source.texts[module])
        names: dict[str, tuple[str, str | None]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    names[alias.asname or alias.name] = (node.module or "", alias.name)
        source.imports[module] = names
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            source.definitions[module, node.name] = node
            for part in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(part, ast.FunctionDef):
                    found = module, f"{node.name}.{part.name}"
                    source.definitions[found] = part
                    source.methods[part.name].append(found)
    return source


def called(source: Source, caller: Function, call: ast.Call) -> Function | None:
    """Return the definition that a call is of."""
    module, function = caller[0], call.func
    if isinstance(function, ast.Name):
        return source.resolve(module, function.id)
    if not isinstance(function, ast.Attribute):
        return None
    name, found = function.attr, None
    if isinstance(function.value, ast.Name):
        owner = caller[1].partition(".")[0]
        base = source.resolve(module, function.value.id)
        if function.value.id in ("self", "cls"):
            base = module, owner
        if base and base[0] == "module":
            found = source.resolve(base[1], name)
        elif base and (base[0], f"{base[1]}.{name}") in source.definitions:
            found = base[0], f"{base[1]}.{name}"
    # A short name may be that of a method of anything.
    if found is None and len(name) > 5 and len(source.methods[name]) == 1:
        found = source.methods[name][0]
    return found


def call_graph(source: Source) -> dict[Function, set[Function]]:
    """Return the functions that each function calls, or hands to a call."""
    graph: dict[Function, set[Function]] = {}
    for caller, node in source.definitions.items():
        if isinstance(node, ast.ClassDef):
            continue
        graph[caller] = set()
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            names = [a.id for a in call.args if isinstance(a, ast.Name)]
            targets = [called(source, caller, call)]
            given = (source.resolve(caller[0], name) for name in names)
            targets += [
                t
                for t in given
                if t and isinstance(source.definitions.get(t), ast.FunctionDef)
            ]
            for module, name in filter(None, targets):
                if isinstance(source.definitions.get((module, name)), ast.ClassDef):
                    made = (
                        (module, f"{name}.{x}") for x in ("__init__", "__post_init__")
                    )
                    graph[caller] |= {x for x in made if x in source.definitions}
                elif (module, name) in source.definitions:
                    graph[caller].add((module, name))
    return graph


def deepest(graph: dict[Function, set[Function]]) -> int:
    """Return how many functions the longest chain of calls has.

    Functions that call each other in a circle count as one.
    """
    sys.setrecursionlimit(100_000)
    numbers: dict[Function, int] = {}
    lowest: dict[Function, int] = {}
    stack: list[Function] = []
    depths: dict[Function, int] = {}

    def visit(function: Function) -> None:
        # Tarjan 1972: circles are found in an order in which callees come first.
        numbers[function] = lowest[function] = len(numbers)
        stack.append(function)
        for target in sorted(graph[function]):
            if target not in numbers:
                visit(target)
            if target not in depths:
                lowest[function] = min(lowest[function], lowest[target])
        if lowest[function] == numbers[function]:
            circle = stack[stack.index(function) :]
            del stack[-len(circle) :]
            below = (depths[t] for f in circle for t in graph[f] - set(circle))
            depths.update(dict.fromkeys(circle, 1 + max(below, default=0)))

    for function in graph:
        if function not in numbers:
            visit(function)
    return max(depths.values())


def reached(graph: dict[Function, set[Function]]) -> set[str]:
    """Return the modules of the functions that `jaxdist train` can reach."""
    found, left = set(), [START]
    while left:
        function = left.pop()
        if function not in found:
            found.add(function)
            left += graph[function]
    return {module for module, _ in found}


def measure() -> dict[str, Any]:
    """Return the figures of the package as it is."""
    source = read_source()
    graph = call_graph(source)
    callers = Counter(t for f, targets in graph.items() for t in targets - {f})
    lines = [x.strip() for text in source.texts.values() for x in text.splitlines()]
    classes = Counter(
        name
        for (_, name), node in source.definitions.items()
        if isinstance(node, ast.ClassDef) and not name.startswith("_")
    )
    once = sum(callers[f] == 1 for f in graph)
    code = sum(map(bool, lines))
    return {
        "files": len(source.texts),
        "lines": len(lines),
        "functions called from one place": 100 * once / len(graph),
        "longest chain of calls": deepest(graph),
        "comment lines": 100 * sum(x.startswith("#") for x in lines) / code,
        "files that `jaxdist train` reaches": len(reached(graph)),
        "names that several public classes have": sum(n > 1 for n in classes.values()),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_record_option(parser)
    args = parser.parse_args()
    found = measure()
    units = {
        "functions called from one place": "%",
        "comment lines": "of 100 lines",
        "longest chain of calls": "functions",
    }
    if args.record:
        rows = [row(name, value, units.get(name, "")) for name, value in found.items()]
        write_result(
            "structure",
            rows,
            title="The source",
            measures="How the package reads, by its syntax trees.",
        )
    json.dump(found, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
