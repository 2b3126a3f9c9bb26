"""The documentation as a site: `make site`. Its source is the repository, so that a link between
two pages is the same on GitHub and here. `docs/index.md` lists the pages, and that list is the
navigation.
"""

from __future__ import annotations

import os
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
project = "equipoise"
author = "the authors of equipoise"
project_copyright = f"{author}; Apache License 2.0"
version = release = metadata.version("equipoise")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = [
    "*.md", "docs/*.md", "docs/decisions/*.md", "examples/README.md", "model/README.md", "replay/data/README.md", "tests/kafka_cases.md",
]  # fmt: skip # a list of pairs
exclude_patterns = [
    ".*", "CODE_OF_CONDUCT.md", "assignors", "bench", "build", "changes", "dist", "docs/site", "equipoise", "events",
    "java", "out", "statemachine",
]  # fmt: skip # a list of pairs
nitpicky = True
default_role = "py:obj"  # `Name` in a docstring is a link where that is documented, and code elsewhere
highlight_language = "text"

myst_heading_anchors = 4

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 90
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"equipoise {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
html_additional_pages = {"index": "redirect.html"}
html_copy_source = False
html_show_sphinx = False
html_theme_options: dict[str, Any] = {"navigation_with_keys": True, "top_of_page_buttons": []}
HOME = ""
if os.environ.get("GITHUB_REPOSITORY"):
    HOME = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{os.environ['GITHUB_REPOSITORY']}"
    html_theme_options |= {"source_repository": HOME, "source_branch": "main", "source_directory": "", "top_of_page_buttons": ["view"]}

SEARCHED = {
    "docs/applications": {"Write an application": "handler, member"},
    "docs/deploy": {"Deploy": "deploy, install", "Kubernetes": "kubernetes", "TLS, passwords and ACLs": "acl, password, tls", "Sizing": "size"},
    "docs/incidents": {"What happened to a group": "incident, rebalance"},
    "docs/logs": {"Retention": "retention", "Back up and restore": "backup, restore", "Lost topics": "lost"},
    "docs/operations": {"Alerts, and other symptoms": "alert", "A halted group": "halt, halted"},
    "docs/restarts": {
        "Restarts": "restart",
        "Scaling down": "scale",
        "Processes that are killed": "crash, kill",
        "Change settings": "configure, setting",
        "Upgrade": "rollback, upgrade",
        "Add partitions": "partition",
    },
    "docs/seat": {"Leading a consumer group of any client": "lead, leader"},
    "docs/what-if": {"What if": "what-if"},
}
"""Page -> heading -> what a reader searches for who wants to do that: the search gives it first."""

linkcheck_ignore = [r"[\w-]+\.html"]  # of docstrings, to pages of the site: tests/unit/test_site.py follows them
linkcheck_timeout = 20
linkcheck_retries = 2


def setup(app: Sphinx) -> None:
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _link_pages)
    app.connect("autodoc-process-signature", _tidy_signature)
    app.connect("missing-reference", _as_code)


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Adds the navigation, and writes in MyST's words what GitHub shows by itself: anchors, state
    diagrams.
    """
    text = re.sub(r'^<a id="([\w-]+)"></a>$', r"(\1)=", source[0], flags=re.MULTILINE)
    text = re.sub(r"\[[\w/-]+\.md\](?=\([\w./-]+\.md(?:#[\w-]+)?\))", "[]", text)  # the name of a page becomes its title
    text = re.sub(r"```mermaid\nstateDiagram-v2\n(.*?)```", lambda found: _table_of_states(found[1]), text, flags=re.DOTALL)
    text = re.sub(r"\[([^\]]+)\]\(([\w./-]+)\)", lambda found: _folder(found, (ROOT / docname).parent), text)
    for heading, searched in SEARCHED.get(docname, {}).items():
        entries = ", ".join(f"! {each}" for each in searched.split(", "))
        text, count = re.subn(rf"^(#+ {re.escape(heading)})$", rf"\1\n\n```{{index}} {entries}\n```\n", text, flags=re.MULTILINE)
        assert count == 1, f"{docname}: {heading}"
    if docname == root_doc:
        text += "".join(_navigation(part) for part in text.split("\n## ")[1:])
    elif docname == "docs/decisions/README":
        text += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"
    source[0] = text


def _folder(link: re.Match[str], base: Path) -> str:
    """A link to a folder leads to the repository, where that is known."""
    target = (base / link[2]).resolve()
    if not target.is_dir():
        return link[0]
    return f"[{link[1]}]({HOME}/tree/main/{target.relative_to(ROOT)})" if HOME else f"`{link[1]}`"


def _navigation(part: str) -> str:
    """The pages that a part of the first page lists, as a part of the navigation."""
    heading, _, text = part.partition("\n")
    pages = [f"{title} <{page}>" for title, page in re.findall(r"\[([^\]]+)\]\(([\w./-]+)\.md\)", text)]
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {heading}", "", *pages, "```", ""])


def _table_of_states(lines: str) -> str:
    """A state diagram in Mermaid, which would need its library from the network."""
    rows = ["| from | to | when |", "|---|---|---|"]
    for before, after, when in re.findall(r"^ *(\S+) --> ([^:\n]+?)(?:: (.*))?$", lines, re.MULTILINE):
        state = {"[*]": "-"}
        rows.append(f"| {state.get(before, before)} | {state.get(after, after)} | {when} |")
    return "\n".join(rows)


def _link_pages(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """`docs/protocol.md#m5` in a docstring becomes a link, M5."""

    def link(found: re.Match[str]) -> str:
        page, anchor = found[1], found[2] or ""
        shown = anchor[1:].upper() if re.fullmatch(r"#[dlm]\d+", anchor) else f"{page}.md"
        return f"`{shown} <{page}.html{anchor}>`__"

    for number, line in enumerate(lines):
        lines[number] = re.sub(r"\bdocs/([\w-]+)\.md(#[\w-]+)?", link, line)


def _tidy_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Leaves out parameters for tests, which begin with an underscore, and what `Protocol` takes.
    Writes out defaults of attrs' fields; "...": there is one, made for each object.
    """
    if signature is None or signature == "(*args, **kwargs)":
        return signature and "", returned
    signature = re.sub(r", _\w+: [^,()]+ = [\w.]+|~(?:\w+\.)+", "", signature)

    def default(found: re.Match[str]) -> str:
        return repr(getattr(attrs.fields(obj), found[1]).default)

    signature = re.sub(r"attr_dict\['(\w+)'\]\.default", default, signature)
    return re.sub(r"\bNOTHING\b|<function .*? at \w+>", "...", signature), returned


def _as_code(app: Sphinx, env: object, node: pending_xref, content: nodes.TextElement) -> nodes.TextElement | None:
    """What the site has no entry for is code. Names of types in signatures are left as they are."""
    return content if node.get("refdomain") == "py" else None
