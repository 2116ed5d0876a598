"""Hooks for mkdocs: pages and links that lie outside ``docs/`` in the repository.

README.md, CONTRIBUTING.md and CHANGELOG.md become pages of the site. In every page, a link to a file of the
repository that is no part of the site (an example, a benchmark's result) becomes an address in the repository.
Links are thus written once, as paths that work in a clone, and the site is still built with ``--strict``.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""The page that each file of the repository's root becomes."""
SOURCES = {page: ROOT / file for file, page in PAGES.items()}

# Fenced blocks are matched whole, too, and stay as they are.
BLOCK = r"^(?P<fence>```+).*?^(?P=fence)|"
LINK = re.compile(BLOCK + r"\]\((?!\w+:|#)(?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)", re.MULTILINE | re.DOTALL)
IN_LIST = re.compile(BLOCK + r"^ {3}(?=\S)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in SOURCES.items():
        files.append(File.generated(config, page, content=source.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    source = SOURCES.get(uri, DOCS / uri)

    def in_the_site(link: re.Match[str]) -> str:
        if link["target"] is None:
            return link[0]
        path = Path(os.path.normpath(source.parent / link["target"]))
        if not path.exists():
            raise PluginError(f"{source.relative_to(ROOT)}: a link to {link['target']}, which is not there")
        file = path.relative_to(ROOT).as_posix()
        place = PAGES.get(file, file.removeprefix("docs/") if path.is_relative_to(DOCS) else None)
        if place is None:
            kind = "tree" if path.is_dir() else "blob"
            return f"]({config.repo_url}/{kind}/main/{file}{link['anchor'] or ''})"
        return f"]({os.path.relpath(place, Path(uri).parent)}{link['anchor'] or ''})"

    # Inside a numbered list, Python-Markdown wants four spaces where other readers of Markdown take three.
    return IN_LIST.sub(lambda match: match[0] if match["fence"] else "    ", LINK.sub(in_the_site, markdown))
