"""Every inner link of the built site leads to a page and a heading; nothing is loaded from a network.

python docs/check_site.py docs/_build/html
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: What a browser fetches by itself.
LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """Links, targets and what is loaded of a page; formulas that did not become MathML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.formulas = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        """Collect what the class names."""
        given = dict(attrs)
        self.ids |= {given[key] for key in ("id", "name") if given.get(key)}
        self.formulas += tag == "math"
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        for name, key in LOADED:
            skipped = given.get("rel") in ("canonical", "next", "prev", "search", "index", "copyright")
            if tag == name and given.get(key) and not skipped:
                self.loaded.append(given[key])


def faults(folder: Path) -> list[str]:
    """What is wrong, one line each."""
    paths = [path for path in sorted(folder.rglob("*.html")) if folder / "_static" not in path.parents]
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in paths}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder).as_posix()
        for target in page.loaded:
            if urlsplit(target).scheme in ("http", "https") or target.startswith("//"):
                found.append(f"{name}: loads {target}")
        for target in {*page.links, *page.loaded}:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            aim = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not aim.exists():
                found.append(f"{name}: {target} leads nowhere")
            elif parts.fragment and aim in pages and unquote(parts.fragment) not in pages[aim].ids:
                found.append(f"{name}: {target} has no such heading")
    formulas = sum(page.formulas for page in pages.values())
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, {formulas} formulas")
    return found if formulas else [*found, "no formula became MathML"]


def main() -> int:
    wrong = faults(Path(sys.argv[1]).resolve())
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
