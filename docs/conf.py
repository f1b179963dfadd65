"""The site: `make docs`. What it needs is the extra "docs"; nothing is read from a network."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util.nodes import make_refnode

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from public import MODULES, names_of  # noqa: E402

from rgals import __version__  # noqa: E402
from rgals.cli import build_parser  # noqa: E402

project = "rgals"
copyright = "the rgals developers, Apache-2.0"
author = "the rgals developers"
version = release = __version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*.ipynb", "gallery/*.py", "gallery/**/*.md5", "gallery/**/*.json"]
templates_path = ["_templates"]
default_role = "py:obj"
highlight_language = "python"

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3

autosummary_generate = True
autosummary_imported_members = True
autodoc_typehints = "none"  # types are in the docstrings
autodoc_member_order = "groupwise"  # methods by name, then attributes: many are inherited
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
# Headings that numpydoc's attributes share with what autodoc documents.
numpydoc_attributes_as_param_list = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "abort_on_example_error": True,
    "capture_repr": (),
    "download_all_examples": False,
    "doc_module": ("rgals",),
    "plot_gallery": True,
    "reference_url": {"rgals": None},  # names in the code of examples are links to the reference
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "within_subsection_order": "ExampleTitleSortKey",
    "write_computation_times": False,  # that page loads scripts from a network
}

html_theme = "pydata_sphinx_theme"
html_title = f"rgals {release}"
html_sidebars = {"papers": []}  # a page without others beside it
html_static_path = ["_static"]
html_css_files = ["rgals.css"]
html_context = {"default_mode": "auto"}  # light or dark as the reader's system is
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "rgals"},
    "header_links_before_dropdown": 9,
    "navbar_align": "left",
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}


def _visit_inline(self, node) -> None:
    self.body.append(convert(node.astext(), display="inline"))
    raise nodes.SkipNode


def _visit_block(self, node) -> None:
    self.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def write_reference() -> None:
    """One page a public module, with every public name: no list to keep up by hand."""
    folder = HERE / "api"
    folder.mkdir(exist_ok=True)
    pages = []
    for module in MODULES:
        found = importlib.import_module(module)
        lines = [f"``{module}``", "=" * (len(module) + 4), "", f".. automodule:: {module}", ""]
        for title, kinds in (
            ("Classes", "class"),
            ("Functions", "function"),
            ("Errors and warnings", "error"),
        ):
            names = names_of(found, kinds)
            if names:
                lines += [title, "-" * len(title), "", f".. currentmodule:: {module}", ""]
                lines += [".. autosummary::", "   :toctree: generated", ""]
                lines += [*(f"   {name}" for name in names), ""]
        write(folder / f"{module}.rst", "\n".join(lines))
        pages.append(module)
    write(folder / "command-line.rst", "\n".join(command_line()))
    pages.append("command-line")
    index = ["Reference", "=========", "", "Every public name, by module, and every command.", ""]
    for page in pages:
        index += [f":doc:`{page}`", f"   {summary_of(page)}", ""]
    index += [".. toctree::", "   :hidden:", "", *(f"   {page}" for page in pages), ""]
    write(folder / "index.rst", "\n".join(index))


def summary_of(page: str) -> str:
    """The first sentence of a module, or what the page of commands has."""
    if page == "command-line":
        return "All commands of ``rgals`` with their options and examples."
    return " ".join((importlib.import_module(page).__doc__ or "").partition("\n\n")[0].split())


def command_line() -> list[str]:
    """The help of ``rgals`` and of every command, as a terminal of 88 columns shows it."""
    os.environ["COLUMNS"] = "88"
    parser = build_parser()
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    parsers = {"rgals": parser} | {f"rgals {name}": each for name, each in commands.choices.items()}
    lines = ["Command line", "============", ""]
    for name, each in parsers.items():
        shown = re.sub(r"\x1b\[[0-9;]*m", "", each.format_help())  # without the colours of new Pythons
        lines += [f"``{name}``", "-" * (len(name) + 4), "", ".. code-block:: text", ""]
        lines += [f"   {line}".rstrip() for line in shown.splitlines()] + [""]
    return lines


def write(path: Path, text: str) -> None:
    """Leave a file alone that has the text already: what did not change is not built again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def leave_out(app, what, name, found, skip, options) -> bool | None:
    """Of inherited members, only rgals' own: scikit-learn documents its own."""
    if name.startswith("_"):
        return True
    owner = getattr(getattr(found, "fget", found), "__module__", None)
    return None if str(owner).startswith("rgals") else True


def link_names(app, doctree, page) -> None:
    """Public names in the text of a page are links to the reference."""
    if page.startswith(("api/", "gallery/")) or page in ("developing", "changelog", "how-it-works"):
        return  # links of their own, or names within the package
    objects = app.env.get_domain("py").objects
    names = {name for name, aim in objects.items() if aim.objtype != "module"}
    names -= {"rgals.RGALS.fit", "rgals.warmup"}  # several classes have a fit, HardNegatives a warmup
    for node in list(doctree.findall(nodes.literal)):
        inside = node.parent
        while inside is not None and not isinstance(inside, nodes.entry | nodes.reference | nodes.title):
            inside = inside.parent
        in_table = isinstance(inside, nodes.entry) and inside.parent.index(inside) == 0
        of_others = page.startswith("coming-from/") and in_table
        if isinstance(inside, nodes.reference | nodes.title) or of_others:
            continue
        name, called, _ = node.astext().partition("(")
        found = {f"{module}.{name}" for module in MODULES} & names
        if called or "_" in name:  # a method's word alone may be anything
            found |= {f"rgals.RGALS.{name}"} & names
        if name in objects and "." in name:
            found = {name}
        if len(found) == 1:
            (full,) = found
            aim = objects[full]
            link = make_refnode(app.builder, page, aim.docname, aim.node_id, node.deepcopy(), full)
            node.replace_self(link)


def no_addresses(app, doctree) -> None:
    """NDCG@10 is a metric: docutils takes it for an address of mail."""
    for node in list(doctree.findall(nodes.reference)):
        if node.get("refuri", "").startswith("mailto:"):
            node.replace_self(nodes.Text(node.astext()))


def setup(app) -> None:
    write_reference()
    app.add_html_math_renderer(
        "mathml", inline_renderers=(_visit_inline, None), block_renderers=(_visit_block, None)
    )
    app.config.html_math_renderer = "mathml"
    app.connect("autodoc-skip-member", leave_out)
    app.connect("doctree-read", no_addresses)
    app.connect("doctree-resolved", link_names)
