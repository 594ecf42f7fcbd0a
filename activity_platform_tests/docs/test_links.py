"""No link of the documents leads nowhere, and one that does is found."""

from __future__ import annotations

from pathlib import Path

from activity_platform_tests.docs.links import broken
from activity_platform_tests.docs.markdown import anchors, documents


def test_every_link_leads_somewhere() -> None:
    assert [line for document in documents() for line in broken(document)] == []


def test_each_way_of_leading_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading: `with` code, and more\n\n# Twice\n\n# Twice\n")
    (tmp_path / "README.md").write_text(
        "[good](there.md#a-heading-with-code-and-more) [good](there.md#twice-1) [good](#here)\n"
        "[good](https://example.com/nowhere.md) `there.md` ![image](none.png) [gone](gone.md)\n"
        "[no heading](there.md#elsewhere) [nor here](#nowhere) [out](../out.md) [root](/there.md)\n"
        "`[code](code.md)` `docs/gone.md` [reference][1]\n\n[1]: other.md\n\n"
        "```\n# not a heading\n[code](code.md)\n```\n\n## Here\n"
    )
    found = list(broken(Path("README.md"), tmp_path))
    assert [line.removeprefix("README.md: ") for line in found] == [
        "none.png leads nowhere",
        "gone.md leads nowhere",
        "there.md#elsewhere names no heading",
        "#nowhere names no heading",
        "../out.md leads nowhere",
        "/there.md leads nowhere",
        "other.md leads nowhere",
        "there is no docs/gone.md",
    ]


def test_headings_in_code_are_none() -> None:
    assert anchors("# One\n\n```sh\n# two\n```\n") == {"one"}
