"""Write the reference pages: the Python API, the commands, the HTTP API, settings, metrics, errors.

The pages are generated when the site is built and are not committed. `tools/reference_sources.py`
says what they are generated from.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
from tools import reference_sources as sources

PAGES = {
    "cli.md": "Commands",
    "http.md": "HTTP API",
    "settings.md": "Settings",
    "metrics.md": "Metrics",
    "errors.md": "Errors",
}
"""The pages beside those of the Python API, in the order of the navigation."""


def write(folder: Path) -> list[tuple[str, str]]:
    """Write all pages into a folder. Returns title and file of each, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "cli.md": commands_page(),
        "http.md": http_page(sources.openapi()),
        "settings.md": settings_page(),
        "metrics.md": metrics_page(),
        "errors.md": errors_page(),
    }
    written = []
    for group in sources.GROUPS:
        file = f"python-{group.lower().replace(' ', '-')}.md"
        (folder / file).write_text(python_page(group), encoding="utf-8")
        written.append((f"Python: {group}", file))
    for file, title in PAGES.items():
        (folder / file).write_text(texts[file], encoding="utf-8")
        written.append((title, file))
    listed = "\n".join(f"- [{title}]({file})" for title, file in written)
    introduction = "# Reference\n\nThese pages are generated from the source code of this version "
    (folder / "index.md").write_text(
        f"{introduction}({sources.VERSION}).\n\n{listed}\n", encoding="utf-8"
    )
    return [("Overview", "index.md"), *written]


def python_page(group: str) -> str:
    lines = [f"# Python API: {group}", ""]
    written: set[str] = set()
    for name, path in sources.public_names(group):
        if path in written:
            continue  # exported under two names
        written.add(path)
        lines += [f"::: {path}", "    options:", f"      heading: {name}"]
        if name in sources.CREATED_BY_MOORING:
            lines.append("      merge_init_into_class: false")
        lines.append("")
    if group == "Blocking API":
        names = ", ".join(f"`{name}`" for name in sources.blocking_names())
        lines += [
            "## Types",
            "",
            "The blocking types have the methods of the async types of the same name. Calls block "
            "instead of being awaited. `mooring.sync` exports the names of `mooring`; these are "
            f"blocking types: {names}.",
            "",
        ]
    return "\n".join(lines)


def commands_page() -> str:
    root = sources.command()
    context = click.Context(root, info_name="mooring")
    lines = ["# Commands", "", "`mooring COMMAND --help` prints the same text.", ""]
    for path, command, inner in _commands(root, context):
        lines += _command(path, command, inner)
    return "\n".join(lines)


def _commands(
    group: click.Group, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = sources.loaded(group.get_command(context, name))
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        yield inner.command_path, command, inner
        if hasattr(command, "list_commands"):
            yield from _commands(command, inner)


def _command(path: str, command: click.Command, context: click.Context) -> list[str]:
    level = "##" if path.count(" ") == 1 else "###"
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"{level} {path}", "", _paragraphs(command.help or ""), ""]
    if not hasattr(command, "list_commands"):
        lines += ["```text", f"{path} {usage}".strip(), "```", ""]
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in record[0]:
            rows.append((f"`{record[0].strip()}`", cell(record[1])))
    return [*lines, *table(("Argument or option", "Description"), rows)]


def _paragraphs(text: str) -> str:
    """The help as Markdown. `\\b` marks a paragraph whose lines stay as they are."""
    written = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            body = paragraph.removeprefix("\b").strip("\n")
            written.append(f"```text\n{textwrap.dedent(body)}\n```")
        else:
            written.append(escape(paragraph))
    return "\n\n".join(written)


def http_page(document: Mapping[str, Any]) -> str:
    lines = [
        "# HTTP API",
        "",
        "A running server serves this description as OpenAPI 3.1 at `/admin/openapi.json`. "
        "[Admin API](../admin-api.md) explains how to use it.",
        "",
        "## Endpoints",
        "",
    ]
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    lines += table(
        ("Method", "Path", "Description"),
        [
            (method.upper(), f"[`{path}`](#{_anchor(method, path)})", cell(_summary(operation)))
            for path, method, operation in operations
        ],
    )
    for path, method, operation in operations:
        title = f"### {method.upper()} `{path}` {{ #{_anchor(method, path)} }}"
        lines += [title, "", escape(_summary(operation)), ""]
        if description := operation.get("description", ""):
            lines += [escape(description), ""]
        lines += _operation(operation)
    lines += ["## Schemas", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"### {name} {{ #schema-{name.lower()} }}", ""]
        lines += [escape(schema["description"]), ""] if schema.get("description") else []
        lines += _fields(schema) or [_type(schema), ""]
    return "\n".join(lines)


def _operation(operation: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            f"`{parameter['name']}`",
            parameter["in"],
            _type(parameter.get("schema", {})),
            "yes" if parameter.get("required") else "no",
            cell(parameter.get("description", "")),
        )
        for parameter in operation.get("parameters", ())
    ]
    lines = table(("Parameter", "In", "Type", "Required", "Description"), rows)
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        lines += [f"Request body, `{media}`: {_type(content.get('schema', {}))}", ""]
    answers = []
    for status, answer in operation["responses"].items():
        kinds = [_type(content.get("schema", {})) for content in answer.get("content", {}).values()]
        answers.append((status, cell(answer.get("description", "")), ", ".join(kinds)))
    return lines + table(("Status", "Description", "Body"), answers)


def _fields(schema: Mapping[str, Any]) -> list[str]:
    required = schema.get("required", ())
    rows = [
        (
            f"`{name}`",
            _type(field),
            "yes" if name in required else "no",
            cell(field.get("description", "")),
        )
        for name, field in schema.get("properties", {}).items()
    ]
    return table(("Field", "Type", "Required", "Description"), rows)


def _type(schema: Mapping[str, Any]) -> str:
    """A JSON schema in a few words, with links to the schemas that it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#schema-{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(option) for option in schema[several]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_type(schema.get('items') or {})}"
    extra = schema.get("additionalProperties")
    if kind == "object" and isinstance(extra, Mapping) and extra:
        return f"object of {_type(extra)}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _summary(operation: Mapping[str, Any]) -> str:
    return str(operation.get("summary") or operation.get("operationId", ""))


def _anchor(method: str, path: str) -> str:
    return f"{method}-{re.sub('[^a-z0-9]+', '-', path.lower()).strip('-')}"


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "`mooring serve --config FILE` reads this YAML. The section `registry:` also configures "
        "clients. Environment variables override its settings, for example "
        "`MOORING_REGISTRY_HEARTBEAT_HEARTBEAT_INTERVAL=5s`.",
        "",
    ]
    for section, kind in sources.settings().items():
        lines += _section(section, kind)
    return "\n".join(lines)


def _section(name: str, kind: Any) -> list[str]:
    described = _field_docstrings(kind)
    rows, inner = [], []
    for field in msgspec.structs.fields(kind):
        if field.name in sources.HIDDEN_SETTINGS:
            continue
        path = f"{name}.{field.encode_name}" if name else field.encode_name
        annotation, text = described.get(field.name, ("", ""))
        if (nested := _struct(field.type)) is not None:
            inner += _section(path, nested)
            continue
        kind_text, default = _annotation(annotation), _default(field)
        if kind_text.startswith("`duration") and default:
            default = f"`{float(default.strip('`')):g}s`"
        rows.append((f"`{path}`", kind_text, default, cell(text)))
    own = table(("Setting", "Type", "Default", "Description"), rows)
    if not own:
        return inner
    title = f"## `{name}:`" if name else "## Server"
    words = inspect.cleandoc(kind.__doc__) if "__doc__" in vars(kind) and kind.__doc__ else ""
    return [title, "", *([escape(words), ""] if words else []), *own, *inner]


def _struct(kind: Any) -> type | None:
    """The struct that a field holds, alone or as an alternative to None."""
    kinds = getattr(kind, "__args__", (kind,))
    structs = [k for k in kinds if isinstance(k, type) and issubclass(k, msgspec.Struct)]
    optional = len(kinds) == 1 or type(None) in kinds
    return structs[0] if structs and optional else None


def _annotation(annotation: str) -> str:
    annotation = re.sub(r"Annotated\[(\w+), .*\]", r"\1", annotation)
    words = annotation.replace("Seconds", "duration").replace(" | ", " or ")
    return f"`{words}`" if words else ""


def _default(field: Any) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    elif field.default is not msgspec.NODEFAULT:
        value = field.default
    else:
        return "required"
    if isinstance(value, tuple):
        value = list(value)
    return f"`{msgspec.json.encode(value).decode()}`" if value not in ("", None) else ""


def _field_docstrings(kind: type) -> dict[str, tuple[str, str]]:
    """The annotation of each field of a class, and the string below it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    fields: dict[str, tuple[str, str]] = {}
    last = ""
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
            fields[last] = (ast.unparse(node.annotation), "")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and last:
            fields[last] = (fields[last][0], inspect.cleandoc(str(node.value.value)))
            last = ""
        else:
            last = ""
    return fields


@dataclass(frozen=True, slots=True)
class Described:
    """A metric as the source declares it."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]


KINDS = {
    "Counter": "counter",
    "CounterMetricFamily": "counter",
    "Gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "Histogram": "histogram",
    "StateSetMetricFamily": "stateset",
}


def metrics() -> list[Described]:
    """Every metric that the source declares, by name."""
    described: list[Described] = []
    for file in sorted(sources.PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "prometheus_client" in text:
            described += _metrics_of(ast.parse(text))
    return sorted(described, key=lambda metric: metric.name)


def _metrics_of(module: ast.Module) -> Iterator[Described]:
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    helpers = {
        node.name: inner
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Call) and _called(inner) in KINDS
    }
    for call in calls:
        maker = call if _called(call) in KINDS else helpers.get(_called(call))
        words = [_text(argument) for argument in call.args[:2]]
        if maker is not None and len(words) == 2 and words[0].startswith("mooring_"):
            yield Described(words[0], KINDS[_called(maker)], words[1], _labels(maker))


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _labels(call: ast.Call) -> tuple[str, ...]:
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("labels", "labelnames")]
    for node in (*call.args[2:3], *named):
        if isinstance(node, ast.List):
            return tuple(map(_text, node.elts))
    return ()


def metrics_page() -> str:
    rows = []
    for metric in metrics():
        name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append((f"`{name}`", metric.kind, labels, cell(metric.text)))
    return "\n".join(
        [
            "# Metrics",
            "",
            "`mooring serve` exposes these metrics at `/metrics`. A process that uses the library "
            "has those of its own registrations and views in the default registry of "
            "`prometheus_client`. [Monitoring](../monitoring.md) has alert rules and a dashboard.",
            "",
            *table(("Metric", "Type", "Labels", "Description"), rows),
        ]
    )


def errors_page() -> str:
    kinds = sources.error_types()
    introduction = (
        "Every error that Mooring raises on purpose is a `MooringError` and has its members."
    )
    lines = ["# Errors", "", introduction, ""]
    lines += ["```text", *_tree(kinds[0], kinds), "```", ""]
    for kind in kinds:
        lines += [f"::: {kind.__module__}.{kind.__name__}", ""]
        lines += ["    options:", f"      heading: {kind.__name__}", "      show_bases: true"]
        lines += ["      inherited_members: false", ""]
    return "\n".join(lines).replace("\n\n    options", "\n    options")


def _tree(kind: type, kinds: Iterable[type], indent: str = "") -> Iterator[str]:
    foreign = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
    others = ", ".join(name for name in foreign if name != "Exception")
    suffix = f" ({others})" if others else ""
    yield f"{indent}{kind.__name__}{suffix}"
    for other in kinds:
        if kind in other.__bases__:
            yield from _tree(other, kinds, indent + "    ")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A Markdown table and an empty line; nothing without rows."""
    written = [f"| {' | '.join(row)} |" for row in rows]
    if not written:
        return []
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *written, ""]


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return escape(" ".join(text.split())).replace("|", "\\|")


def escape(text: str) -> str:
    """Text whose `<`, `*` and `_` are not Markdown or HTML, except in code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if index % 2 else re.sub(r"([<*_\[\]])", r"\\\1", part)
        for index, part in enumerate(parts)
    )
