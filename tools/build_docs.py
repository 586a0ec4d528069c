"""Build the documentation site into site/.

python -m tools.build_docs [--output FOLDER]

The pages of docs/ are copied to a scratch folder, the reference is generated beside them, and the
navigation lists the pages that exist. A broken link fails the build. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from tools import reference

ROOT = Path(__file__).parents[1]
EXPLANATION = ("design.md", "guarantees.md", "contracts.md", "benchmarks.md")
PROJECT = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages of the repository's root, and their names in the site."""
GUIDES = (
    "fastapi",
    "flask",
    "grpc",
    "workers",
    "rolling-restart",
    "cron-once",
    "locks-with-fencing",
    "embedded-to-etcd",
    "from-redis-v1",
    "from-jxt",
    "backup",
    "tls",
    "monitoring",
)
"""The order of the guides; others follow by name."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)

Navigation = list[dict[str, object]]


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--output", type=Path, default=ROOT / "site")
    output = parser.parse_args().output.resolve()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mooring-docs-") as scratch:
        code = build(Path(scratch), output)
    if code == 0:
        size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
        seconds = time.monotonic() - started
        print(f"{output}: {size / 1e6:.1f} MB in {seconds:.0f} s")
    return code


def build(scratch: Path, output: Path, docs: Path = ROOT / "docs") -> int:
    """Build the site of the pages in `docs`. Returns the exit code of the builder."""
    pages = scratch / "docs"
    stage(pages, docs)
    written = reference.write(pages / "reference")
    configuration = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    configuration["docs_dir"] = "docs"
    configuration["site_dir"] = "site"
    configuration["nav"] = navigation(pages, written)
    handler = configuration["plugins"][1]["mkdocstrings"]["handlers"]["python"]
    handler["paths"] = [str(ROOT / "src")]
    handler["options"]["extensions"] = [str(ROOT / "tools/reference_members.py")]
    text = yaml.safe_dump(configuration, allow_unicode=True, sort_keys=False)
    (scratch / "mkdocs.yml").write_text(text, encoding="utf-8")
    builder = Path(sys.executable).with_name("zensical")
    command = [str(builder), "build", "--strict", "--clean"]
    environment = {**os.environ, "NO_COLOR": "1"}
    code = subprocess.run(command, cwd=scratch, check=False, env=environment).returncode
    if code == 0:
        mark_chinese(scratch / "site" / "zh")
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(scratch / "site", output)
    return code


def mark_chinese(folder: Path) -> None:
    """Declare the language of the Chinese pages: Zensical has one language for the whole site."""
    for page in folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace('<html lang="en"', '<html lang="zh"', 1), encoding="utf-8")


def stage(pages: Path, docs: Path) -> None:
    """Copy the pages, with links that fit their new places."""
    # README.md is the index for readers of the repository; the site has index.md.
    ignored = shutil.ignore_patterns("README.md")
    shutil.copytree(docs, pages, ignore=ignored)
    for page in pages.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        place = page.relative_to(pages)
        page.write_text(relinked(text, Path("docs", place), place), encoding="utf-8")
    for source, name in PROJECT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        (pages / name).write_text(relinked(text, Path(source), Path(name)), encoding="utf-8")


def relinked(page_text: str, source: Path, page: Path) -> str:
    """Adapt the links of a page, which is `source` in the repository and `page` in the site.

    A link to a file that the site does not have becomes that file's path. A link to a missing file
    stays, and fails the build."""

    def replaced(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups()
        if "://" in target or target.startswith(("mailto:", "/")):
            return match[0]
        linked = (ROOT / source.parent / target).resolve()
        if not linked.exists() or not linked.is_relative_to(ROOT):
            return match[0]
        path = linked.relative_to(ROOT)
        if str(path) in ("README.md", "docs/README.md", "docs"):
            new = Path("index.md")
        elif str(path) in PROJECT:
            new = Path(PROJECT[str(path)])
        elif path.parts[0] == "docs" and linked.is_file():
            new = path.relative_to("docs")
        else:
            name = text.strip("`")
            return f"`{path}`" if name == str(path) else f"{text} (`{path}`)"
        return f"{mark}[{text}]({os.path.relpath(new, page.parent)}{anchor or ''})"

    parts = _FENCE.split(page_text)
    return "".join(
        part if index % 2 else _LINK.sub(replaced, part) for index, part in enumerate(parts)
    )


def navigation(pages: Path, written: list[tuple[str, str]]) -> Navigation:
    """The sections of the site with the pages that exist."""
    guides = _ordered(pages / "guides", [f"{name}.md" for name in GUIDES])
    chinese_pages = _ordered(pages / "zh", ["index.md", "tutorial.md", "store.md"])
    chinese = [f"zh/{name}" for name in chinese_pages]
    chinese_guides = _ordered(pages / "zh" / "guides", [f"{name}.md" for name in GUIDES])
    chinese += [f"zh/guides/{name}" for name in chinese_guides]
    project = ["versioning.md", *PROJECT.values()]
    placed = {"index.md", "tutorial.md", *EXPLANATION, *project}
    topics = [file.name for file in sorted(pages.glob("*.md")) if file.name not in placed]
    sections: dict[str, list[object]] = {
        "How-to guides": [f"guides/{name}" for name in guides],
        "Topics": [*topics],
        "Reference": [{title: f"reference/{file}"} for title, file in written],
        "Explanation": [name for name in EXPLANATION if (pages / name).exists()],
        "中文": [*chinese],
        "Project": [name for name in project if (pages / name).exists()],
    }
    listed: Navigation = [{"Home": "index.md"}, {"Tutorial": "tutorial.md"}]
    listed += [{title: files} for title, files in sections.items() if files]
    return listed


def _ordered(folder: Path, first: list[str]) -> list[str]:
    names = {file.name for file in folder.glob("*.md")}
    known = [name for name in first if name in names]
    return known + sorted(names.difference(known))


if __name__ == "__main__":
    sys.exit(main())
