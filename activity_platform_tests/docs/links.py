"""Links of the project's Markdown that lead nowhere, and files that it names and that are not there.

    python -m activity_platform_tests.docs.links

Looks at relative links, their anchors, and paths between backticks. Other addresses are left alone: this
needs no network. Exit status 1 if anything was found.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import click

from activity_platform_tests.docs.markdown import PROJECT, anchors, code_spans, documents, links

_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
#: NNNN stands for a number that is not chosen yet.
_PATH = re.compile(
    r"(?!.*NNNN)[\w.-]+(?:/[\w.-]+)+\.(?:md|py|sql|yml|yaml|toml|json|ts|go)(?:#(?P<anchor>[\w-]+))?"
)


def broken(document: Path, root: Path = PROJECT) -> Iterator[str]:
    """What is wrong in one document (a path from `root`), a line each."""
    text = (root / document).read_text(encoding="utf-8")
    for target in links(text):
        if not _ELSEWHERE.match(target):
            yield from _followed(document, target, root)
    for span in code_spans(text):
        if (match := _PATH.fullmatch(span)) and not _named_file(span, root):
            yield f"{document}: there is no {span}" + (" or no such heading" if match["anchor"] else "")


def _followed(document: Path, target: str, root: Path) -> Iterator[str]:
    path, _, anchor = unquote(target).partition("#")
    file = (root / document.parent / path).resolve() if path else root / document
    if path.startswith("/") or not file.exists() or not file.is_relative_to(root.resolve()):
        yield f"{document}: {target} leads nowhere"
    elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
        yield f"{document}: {target} names no heading"


def _named_file(span: str, root: Path) -> bool:
    """Whether the path is one from the root or from within the package, and its anchor there."""
    path, _, anchor = span.partition("#")
    for base in (root, root / "activity_platform"):
        if (base / path).exists():
            return not anchor or anchor in anchors((base / path).read_text(encoding="utf-8"))
    return False


def main() -> int:
    found = [line for document in documents() for line in broken(document)]
    for line in found:
        click.echo(line, err=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
