"""The site: `make docs`. What it needs is the extra "docs"; nothing is read from a network."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from public import MODULES, names_of  # noqa: E402

from rgals import __version__  # noqa: E402

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
autodoc_member_order = "bysource"
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
    "plot_gallery": True,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "within_subsection_order": "FileNameSortKey",
    "write_computation_times": False,  # that page loads scripts from a network
}

html_theme = "pydata_sphinx_theme"
html_title = f"rgals {release}"
html_static_path = ["_static"]
html_css_files = ["rgals.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "rgals"},
    "header_links_before_dropdown": 9,
    "navbar_align": "left",
    "navigation_with_keys": False,
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
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
    index = [
        "Reference",
        "=========",
        "",
        "Every public name, by module.",
        "",
        ".. toctree::",
        "   :maxdepth: 2",
        "",
    ]
    write(folder / "index.rst", "\n".join([*index, *(f"   {page}" for page in pages), ""]))


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
