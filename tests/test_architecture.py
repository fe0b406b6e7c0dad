"""The arrows of the design, read off the imports: ``service -> models <- training``."""

import ast
import re
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("models", "training", "service", "triwire")
ROOMS = {"models", "training", "service"}
CLIENT_MAY_IMPORT = {"httpx2", "numpy"}
MAX_LINES = 600
CATCH_ALL_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
MODELS_MAY_IMPORT = {"jax", "flax", "numpy", "orbax", "jaxtyping"}
WEB = {"fastapi", "starlette", "uvicorn"}
# From the wire to the device; what stands later in the list is nearer to the device.
LAYERS = ("service.routes", "service.tasks", "service.batcher", "service.engine")
# What one installs, where it is called otherwise when imported or brings another name along.
IMPORTED_AS = {
    "orbax-checkpoint": {"orbax"},
    "pydantic-settings": {"pydantic_settings"},
    "pydantic": {"pydantic", "pydantic_core"},
    "fastapi": {"fastapi", "starlette"},
    "python-dotenv": {"dotenv"},
    "prometheus-client": {"prometheus_client"},
}


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}


def imports_of(name):
    """Every module that is imported anywhere in a module, in functions too, by its full name."""
    found = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            submodules = {f"{base}.{alias.name}" for alias in node.names} & SOURCES.keys()
            found |= submodules or {base}
    return found


IMPORTS = {name: imports_of(name) for name in SOURCES}


def is_in(module, package):
    return module == package or module.startswith(f"{package}.")


def modules_of(package):
    found = {name: IMPORTS[name] for name in SOURCES if is_in(name, package)}
    assert found, f"there is no {package}"
    return found


def roots(package):
    """The top-level packages from outside the standard library that a package imports."""
    imported = {module.split(".")[0] for found in modules_of(package).values() for module in found}
    return imported - sys.stdlib_module_names


def assert_never_imports(package, forbidden):
    for name, imported in modules_of(package).items():
        wrong = {module for module in imported for other in forbidden if is_in(module, other)}
        assert not wrong, f"{name} imports {sorted(wrong)}"


def test_models_import_neither_training_nor_service():
    assert_never_imports("models", {"training", "service"})


def test_service_and_training_never_import_each_other():
    assert_never_imports("service", {"training"})
    assert_never_imports("training", {"service"})


def test_models_import_only_what_a_network_needs():
    assert roots("models") <= MODELS_MAY_IMPORT | {"models"}


def test_the_client_stands_by_itself():
    """It knows the other rooms by what they say over HTTP, and none of them knows it."""
    assert roots("triwire") == CLIENT_MAY_IMPORT | {"triwire"}
    for room in ROOMS:
        assert_never_imports(room, {"triwire"})


def test_the_client_is_installed_with_what_it_imports_and_no_more():
    assert {named(requirement) for requirement in project()["dependencies"]} == CLIENT_MAY_IMPORT


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def named(requirement):
    return re.split(r"[<>=!~\[ ]", requirement)[0]


def required_by(extra):
    """What an extra installs, with the base and what it takes from other extras."""
    names = {named(requirement) for requirement in project()["dependencies"]}
    for requirement in project()["optional-dependencies"][extra]:
        other = re.fullmatch(r"triwire\[(\w+)\]", requirement)
        names |= required_by(other[1]) if other else {named(requirement)}
    return names


@pytest.mark.parametrize(("package", "extra"), [("service", "serve"), ("training", "train")])
def test_a_package_imports_only_what_its_extra_installs(package, extra):
    """The image installs the base and ``serve`` alone; training does without ``tensorboard``."""
    importable = set().union(*(IMPORTED_AS.get(name, {name}) for name in required_by(extra)))
    # What the extra otel installs is imported by one module, and only when it is asked for.
    optional = {"opentelemetry"} if package == "service" else set()
    assert roots(package) <= importable | {package, "models"} | optional


def test_only_tracing_needs_the_extra_for_it():
    users = {
        name
        for name, imported in IMPORTS.items()
        if any(is_in(m, "opentelemetry") for m in imported)
    }
    assert users == {"service.tracing"}
    at_once = [n for n in TREES["service.tracing"].body if isinstance(n, ast.ImportFrom)]
    assert at_once
    assert not [n.module for n in at_once if n.module.startswith("opentelemetry")]


def test_routes_know_no_arrays():
    assert_never_imports("service.routes", {"jax", "numpy", "flax", "models"})


def test_tasks_know_no_http():
    assert_never_imports("service.tasks", WEB)


def test_the_batcher_knows_no_arrays_and_no_http():
    assert_never_imports("service.batcher", {"jax", "flax", "numpy", "models", "pydantic"} | WEB)


def test_the_engine_knows_no_http():
    assert_never_imports("service.engine", {"pydantic", "pydantic_settings", "asyncio"} | WEB)


def test_the_service_never_points_backwards():
    """Routes use tasks, tasks the batcher and the engine; nothing uses what is nearer the wire."""
    for index, layer in enumerate(LAYERS):
        assert_never_imports(layer, set(LAYERS[:index]))
    users = {
        name
        for name, imported in modules_of("service").items()
        if any(is_in(module, "service.routes") for module in imported)
    }
    assert {name for name in users if not is_in(name, "service.routes")} == {"service.app"}


def test_no_import_goes_in_a_circle():
    graph = {name: imported & SOURCES.keys() - {name} for name, imported in IMPORTS.items()}
    tuple(TopologicalSorter(graph).static_order())


def test_all_imports_are_absolute():
    for name, tree in TREES.items():
        relative = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level]
        assert not relative, f"{name} imports relatively"


def test_nothing_private_is_imported_from_another_module():
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                private = [a.name for a in node.names if re.match("_[^_]", a.name)]
                assert not private, f"{name} imports {private} from {node.module}"


def test_no_module_is_called_by_a_name_that_holds_anything():
    parts = {part for name in SOURCES for part in name.split(".")}
    assert not parts & CATCH_ALL_NAMES


def test_no_file_is_longer_than_600_lines():
    lengths = {
        name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in SOURCES.items()
    }
    assert {name: length for name, length in lengths.items() if length >= MAX_LINES} == {}


def test_the_imports_are_really_read():
    """A rule that sees no imports would pass whatever the code does."""
    assert "models.masks" in IMPORTS["models.encoder"]
    assert "training.plots" in IMPORTS["training.loop"]
    assert {"jax", "flax"} <= IMPORTS["training.loop"]
    assert len(SOURCES) > 30
