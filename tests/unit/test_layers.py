"""Dependencies between packages point one way, and drivers are imported only where allowed."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import mooring

ROOT = Path(mooring.__file__).parent

LAYERS = [
    {"formatting"},
    {"messages"},
    {"errors"},
    {
        "atomic_file",
        "connection_limit",
        "durations",
        "file_lock",
        "fork_safety",
        "names",
        "protobuf",
        "tasks",
    },
    {"addresses"},
    {"model"},
    {"masking", "settings", "telemetry"},
    {"store"},
    {"session", "mirror"},
    {"heartbeat", "locks", "tenants"},
    {"registry"},
    {"discovery", "migrate"},
    {"etcd_server", "backends"},
    {"hub"},
    {"sync", "workers"},
    {"asgi", "grpc", "hprose", "httpx", "wsgi", "xds"},
    {"demo", "testing", "server"},
    {"cli"},
]
"""Lowest first. A module imports from its own top-level part and from lower layers only."""

DRIVERS = {
    "cryptography": ("tenants/secrets.py",),
    "grpc": ("etcd_server/", "grpc/", "server/health_checks/checkers.py", "store/etcd/", "xds/"),
    "google": ("protobuf.py", "store/etcd/"),
    "hiredis": ("registry/redis/pipeline.py",),
    "hprose": ("hprose/",),
    "httpx": ("httpx.py",),
    "immutables": ("tenants/",),
    "prometheus_client": (
        "registry/redis/cleanup.py",
        "server/alerts.py",
        "server/api/monitoring.py",
        "server/app.py",
        "server/event_stream.py",
        "telemetry.py",
        "xds/server.py",
    ),
    "psutil": (
        "cli/io/child_process.py",
        "heartbeat/builtin_collectors.py",
        "server/health_checks/target_policy.py",
    ),
    "redis": ("registry/redis/",),
    "sqlite3": ("store/embedded/",),
    "starlette": (
        "server/api/endpoint.py",
        "server/app.py",
        "server/auth/audit.py",
        "server/auth/host_and_csrf.py",
        "server/auth/sessions.py",
        "server/http/request.py",
        "server/http_listener.py",
    ),
    "uvicorn": ("server/http_listener.py",),
    "yaml": (
        "cli/commands/tenant/show.py",
        "cli/commands/xds.py",
        "server/settings.py",
        "settings/registry.py",
        "tenants/document.py",
    ),
}
"""The files, and the folders (with a slash), that may import a driver."""


def imports(file: Path) -> Iterator[str]:
    """What a module imports at runtime; imports only for type checking do not count."""
    tree = ast.parse(file.read_text())
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            module = node.module or ""
            yield module
            if module == "mooring":
                yield from (f"mooring.{name.name}" for name in node.names)


def part(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def level(name: str) -> int:
    (position,) = [n for n, layer in enumerate(LAYERS) if name in layer] or [-1]
    assert position >= 0, f"{name} has no layer: add it to LAYERS"
    return position


def test_dependencies_point_down():
    wrong = []
    for file in ROOT.rglob("*.py"):
        if (here := part(file)) == "__init__":
            continue
        for target in imports(file):
            if not target.startswith("mooring."):
                continue
            target_package = target.split(".")[1]
            if target_package == "__version__" or target_package == here:
                continue
            if level(target_package) >= level(here):
                wrong.append(f"{file.relative_to(ROOT)} imports {target}")
    assert wrong == []


def test_drivers_are_imported_only_where_allowed():
    wrong = []
    unused = {(driver, home) for driver, homes in DRIVERS.items() for home in homes}
    for file in ROOT.rglob("*.py"):
        path = file.relative_to(ROOT).as_posix()
        for target in imports(file):
            driver = target.split(".")[0]
            if driver not in DRIVERS:
                continue
            homes = [
                home
                for home in DRIVERS[driver]
                if path == home or (home.endswith("/") and path.startswith(home))
            ]
            unused -= {(driver, home) for home in homes}
            if not homes:
                wrong.append(f"{path} imports {target}")
    assert wrong == []
    assert unused == set(), "remove them from DRIVERS"


def test_backends_do_not_know_each_other():
    pairs = {"store": ("embedded", "etcd"), "registry": ("kv", "redis")}
    for parent, (one, other) in pairs.items():
        for backend, other_backend in ((one, other), (other, one)):
            for file in (ROOT / parent / backend).rglob("*.py"):
                package = f"mooring.{parent}.{other_backend}"
                assert not [target for target in imports(file) if package in target], file


def _importers_of(name: str) -> set[str]:
    return {
        file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*.py") if _imports(file, name)
    }


def _imports(file: Path, name: str) -> bool:
    """Whether a module imports a name or, for a package, anything of it, even for type checking."""
    return any(
        f"{node.module}.{alias.name}.".startswith(f"{name}.")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )


def test_consumers_of_a_registry_take_the_roles_that_they_use():
    """Only modules that compose or hold all roles name the whole `Registry`."""
    assert _importers_of("mooring.registry.contract.Registry") == {
        "__init__.py",
        "hub.py",
        "registry/kv/registry.py",
        "registry/lookup.py",
        "registry/redis/registry.py",
        "server/context.py",
    }


def test_consumers_of_a_registry_do_not_ask_which_one_it_is():
    """Only modules that open a registry, and tools for one kind of it, know its kind."""
    assert _importers_of("mooring.registry.redis.registry") - {"registry/redis/acl_probe.py"} == {
        "backends.py",
        "cli/commands/doctor.py",
        "migrate/redis_v1/migration.py",
    }
    assert _importers_of("mooring.registry.kv.registry") == {"hub.py"}
    assert _importers_of("mooring.store.url.REDIS") == {
        "backends.py",
        "cli/commands/doctor.py",
        "cli/commands/migrate/redis_v1.py",
        "hub.py",
    }


def _modules() -> dict[str, Path]:
    return {
        ".".join(file.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): file
        for file in ROOT.rglob("*.py")
    }


def _imported(file: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of Mooring that a module imports, at runtime or for type checking."""
    targets = set[str]()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            targets.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (node.module, alias.name) != ("mooring", "__version__"):
                    name = f"{node.module}.{alias.name}"
                    targets.add(name if name in modules else str(node.module))
    return targets & set(modules)


def test_imports_have_no_cycles():
    """Not even if imports for type checking count."""
    modules = _modules()
    graph = {name: _imported(file, modules) - {name} for name, file in modules.items()}
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


TASK_CREATORS = {
    "create_task": {"tasks.py"},
    "ensure_future": set(),
    "TaskGroup": set(),
    # From another thread. The future that it returns has an owner, who waits for it.
    "run_coroutine_threadsafe": {"registry/shutdown.py", "sync/portal.py"},
}
"""The ways to create a task that nothing awaits at once, and the modules that may use them."""


def _task_creators(tree: ast.AST) -> set[str]:
    """Those that a module uses."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return names & TASK_CREATORS.keys()


@pytest.mark.parametrize(
    "source",
    [
        "asyncio.create_task(x)",
        "loop.create_task(x)",
        "from asyncio import create_task",
        "from asyncio import sleep, ensure_future as start",
        "from asyncio import TaskGroup",
        "asyncio.run_coroutine_threadsafe(x, loop)",
    ],
)
def test_every_way_to_create_a_task_is_recognized(source: str):
    assert _task_creators(ast.parse(source))


def test_tasks_are_created_only_where_allowed():
    modules: dict[str, set[str]] = {name: set() for name in TASK_CREATORS}
    for file in ROOT.rglob("*.py"):
        for name in _task_creators(ast.parse(file.read_text())):
            modules[name].add(file.relative_to(ROOT).as_posix())
    assert modules == TASK_CREATORS


def test_http_does_not_import_the_domain():
    allowed = ("mooring.server.http", "mooring.messages")
    modules = _modules()
    wrong = [
        f"{file.name} imports {target}"
        for file in (ROOT / "server/http").rglob("*.py")
        for target in _imported(file, modules)
        if not any(target == name or target.startswith(f"{name}.") for name in allowed)
    ]
    assert wrong == []
