"""Commands, options, targets of make and variables that the documents name exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from activity_platform.cli import main
from activity_platform.settings import Settings
from activity_platform_tests.docs.markdown import PROJECT, code_spans, documents, fenced

TEXTS = {str(path): (PROJECT / path).read_text() for path in documents()}
#: Variables that others read: the shell, compose, Docker, the AWS client, tests.
_VARIABLE = re.compile(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?:=[^`]*)?`")


def command_lines(text: str) -> Iterator[list[str]]:
    """The words after each `activity-platform` of a document, up to the end of the simple command."""
    code = [*code_spans(text), *(block.replace("\\\n", " ") for block in fenced(text, "sh"))]
    for piece in code:
        for call in re.findall(r"(?<![\w./-])activity-platform ([^\n|;&)]+)", piece):
            yield _words(call)


def _words(call: str) -> list[str]:
    try:
        return shlex.split(call.split(" #")[0])
    except ValueError:  # a quotation that goes on in the next line
        return call.split("'")[0].split()


def problem(words: list[str]) -> str | None:
    """What is wrong with a command line: a command or an option that doesn't exist."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith(("-", "…")):
        names = words[0].split("|")
        found = [command.commands.get(name) for name in names]
        if None in found:
            return f"no command {words[0]}"
        command, words = found[0] or command, words[1:]
    options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]
    return f"{command.name} has no {unknown[0]}" if unknown else None


@pytest.mark.parametrize("document", TEXTS)
def test_every_command_is_one(document: str) -> None:
    for words in command_lines(TEXTS[document]):
        assert problem(list(words)) is None, words


def test_a_command_that_is_none_is_seen() -> None:
    text = (
        "`activity-platform queue peek`, `activity-platform oa add --name X`\n"
        "```sh\nx=$(activity-platform fly)\n```"
    )
    assert [problem(words) for words in command_lines(text)] == [
        "no command peek",
        "add has no --name",
        "no command fly",
    ]


@pytest.mark.parametrize("document", TEXTS)
def test_every_target_of_make_exists(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    asked = re.findall(r"(?:^|`)make ([a-z-]+)", TEXTS[document], re.MULTILINE)
    assert set(asked) <= targets


@pytest.mark.parametrize("document", [name for name in TEXTS if name.startswith("docs/")])
def test_every_variable_is_a_setting_or_one_that_others_read(document: str) -> None:
    settings = {variable.name for variable in Settings.variables().values()}
    others = (PROJECT / "docker-compose.yml").read_text() + (PROJECT / "dagster.yaml").read_text()
    named = set(_VARIABLE.findall(TEXTS[document]))
    unknown = {name for name in named if name.removesuffix("_FILE") not in settings and name not in others}
    assert unknown == set()
