"""Markdown as the documents use it: headings with GitHub's anchors, links, fenced code, generated blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import activity_platform

PROJECT = Path(activity_platform.__file__).parent.parent
DOCS = PROJECT / "docs"

_FENCE = re.compile(
    r"^(?P<fence>```+|~~~+)(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=fence)\s*$", re.MULTILINE | re.DOTALL
)
_CODE = re.compile(r"(`+)(?!`)((?:[^\n]|\n(?!\n))+?)(?<!`)\1(?!`)")
_HEADING = re.compile(r"^(?P<level>#{1,6}) +(?P<text>.+?) *#*$", re.MULTILINE)
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?(?P<target>[^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?(?P<target>[^>\s]+)>?", re.MULTILINE)
_NAMED_ANCHOR = re.compile(r"<a (?:id|name)=\"(?P<name>[^\"]+)\"")
_BLOCK = re.compile(
    r"(?P<begin><!-- generated: (?P<name>[^>]+?) -->\n).*?(?P<end><!-- end of generated -->)", re.DOTALL
)


@dataclass(frozen=True)
class Section:
    """A heading, its anchor and the text below it, up to the next heading of its level or a higher one."""

    heading: str
    anchor: str
    level: int
    text: str


def documents() -> list[Path]:
    """Every Markdown file of the project, as paths from its root."""
    found = []
    for directory, below, names in os.walk(PROJECT):
        below[:] = [name for name in below if not name.startswith(".") and name != "node_modules"]
        found += [Path(directory, name) for name in names if name.endswith(".md")]
    return sorted(path.relative_to(PROJECT) for path in found)


def sections(text: str) -> list[Section]:
    """The sections of a document, in order."""
    visible = _without_fences(text)
    headings = list(_HEADING.finditer(visible))
    seen: dict[str, int] = {}
    found = []
    for number, heading in enumerate(headings):
        level = len(heading["level"])
        after = (one.start() for one in headings[number + 1 :] if len(one["level"]) <= level)
        anchor = _slug(heading["text"])
        seen[anchor] = seen.get(anchor, -1) + 1
        found.append(
            Section(
                heading["text"].replace("`", ""),
                f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor,
                level,
                text[heading.end() : next(after, len(text))],
            )
        )
    return found


def anchors(text: str) -> set[str]:
    """What a link to the document may name after `#`."""
    return {section.anchor for section in sections(text)} | set(_NAMED_ANCHOR.findall(text))


def links(text: str) -> list[str]:
    """The targets of its links and images."""
    visible = _CODE.sub("", _without_fences(text))
    return [match["target"] for pattern in (_LINK, _REFERENCE) for match in pattern.finditer(visible)]


def code_spans(text: str) -> list[str]:
    """What stands between backticks within lines."""
    return [span for _, span in _CODE.findall(_without_fences(text))]


def fenced(text: str, language: str) -> Iterator[str]:
    """The fenced blocks of code in that language."""
    return (match["code"] for match in _FENCE.finditer(text) if match["language"].strip() == language)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; `|` and line ends within cells are escaped."""
    lines = [list(columns), ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def blocks(text: str) -> list[str]:
    """The names of its generated blocks."""
    return [match["name"] for match in _BLOCK.finditer(text)]


def regenerated(text: str, makers: Mapping[str, Callable[[], str]]) -> str:
    """The document with every generated block made anew by its name."""
    return _BLOCK.sub(
        lambda match: f"{match['begin']}{makers[match['name']]().strip()}\n{match['end']}", text
    )


def _without_fences(text: str) -> str:
    # Blank lines in their place, so that positions stay.
    return _FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _slug(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
