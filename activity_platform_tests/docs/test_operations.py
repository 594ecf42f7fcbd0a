"""Whatever can ring or be red has its heading, with what it means, where to look and what cures it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import dagster as dg
import psycopg
import pytest
import yaml  # type: ignore[import-untyped]

from activity_platform import doctor
from activity_platform.audience.reasons import PERMANENT, Reason
from activity_platform.defs import pages
from activity_platform_tests.docs import operation
from activity_platform_tests.docs.markdown import DOCS, PROJECT, Section, code_spans, fenced, sections

OPERATIONS = (DOCS / "operations.md").read_text()
#: Neither tried again nor given up: the command is recorded as skipped.
SKIPPED = {Reason.AUDIENCE_DELETED}


@pytest.fixture(scope="module")
def repository() -> dg.RepositoryDefinition:
    return operation.definitions()


def by_anchor(page: str) -> dict[str, Section]:
    return {section.anchor: section for section in sections((PROJECT / page).read_text())}


def starters(repository: dg.RepositoryDefinition) -> dict[str, str]:
    """Each schedule's and sensor's name and description."""
    schedules = {one.name: one.description or "" for one in repository.schedule_defs}
    return schedules | {one.name: one.description or "" for one in repository.sensor_defs}


def checks(repository: dg.RepositoryDefinition) -> dict[str, str]:
    """Each asset check's name and description."""
    graph = repository.asset_graph
    keys = [key for asset in graph.get_all_asset_keys() for key in graph.get(asset).check_keys]
    return {key.name: graph.get_check_spec(key).description or "" for key in keys}


def alarms() -> dict[str, str]:
    """Each alarm's name and the page that it names."""
    (group,) = yaml.safe_load((PROJECT / "deploy" / "prometheus-rules.yml").read_text())["groups"]
    return {rule["alert"]: rule["annotations"]["runbook"] for rule in group["rules"]}


def findings() -> set[str]:
    """The names of all findings that are not fine, read off the code that makes them."""
    names = set()
    for file in Path(doctor.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name("red" | "warn" | "Examination"), args=[ast.Constant(str(name)), *_]
                ):
                    names.add(name)
    return names


def test_every_schedule_and_sensor_names_its_heading(repository: dg.RepositoryDefinition) -> None:
    headings = by_anchor(pages.STARTERS)
    for name, description in starters(repository).items():
        assert description.endswith(f" See {pages.STARTERS}#{name}"), f"use pages.starter for {name}"
        assert name in headings, f"{pages.STARTERS} has no heading {name}"


def test_every_asset_check_names_its_heading(repository: dg.RepositoryDefinition) -> None:
    headings = by_anchor(pages.CHECKS)
    for name, description in checks(repository).items():
        assert description.endswith(f" See {pages.CHECKS}#{name}"), f"use pages.asset_check for {name}"
        assert name in headings, f"{pages.CHECKS} has no heading {name}"


def test_every_alarm_names_a_heading_that_names_it() -> None:
    headings = by_anchor(pages.CHECKS)
    for name, runbook in alarms().items():
        page, _, anchor = runbook.partition("#")
        assert page == pages.CHECKS
        section = headings[anchor]
        assert section.heading == name or f"Alarm `{name}`" in section.text


def test_every_finding_of_doctor_has_its_heading() -> None:
    found = findings()
    assert found >= {"postgresql", "pooler", "dagster daemon", "clocks"}
    headings = {section.heading for section in sections(OPERATIONS)}
    assert {f"doctor: {name}" for name in found} - headings == set()


def test_no_heading_is_left_of_what_is_gone(repository: dg.RepositoryDefinition) -> None:
    started = {anchor for anchor, one in by_anchor(pages.STARTERS).items() if one.level == 3}
    assert started == starters(repository).keys()
    explained = {one.heading for one in sections(OPERATIONS) if one.level == 3}
    known = {*checks(repository), *alarms(), *(f"doctor: {name}" for name in findings())}
    assert explained - known == set()


def test_each_says_what_it_means_where_to_look_and_what_cures_it() -> None:
    for section in sections(OPERATIONS):
        if section.level == 3:
            assert re.findall(r"^- \*\*(\w+)\*\*: ", section.text, re.MULTILINE) == [
                "Means",
                "Look",
                "Cure",
            ], section


def test_every_reason_is_explained_and_told_whether_it_is_tried_again() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (yes|no) \|", OPERATIONS, re.MULTILINE))
    assert rows == {str(reason): "no" if reason in PERMANENT | SKIPPED else "yes" for reason in Reason}


def test_its_statements_are_understood_by_the_databases(
    connection: psycopg.Connection, dagster_postgres_url: str
) -> None:
    asked = [span for span in code_spans(OPERATIONS) if re.match(r"(SELECT|SHOW) ", span)]
    statements = [one for one in asked if "pg_terminate_backend" not in one] + list(fenced(OPERATIONS, "sql"))
    assert len(statements) > 4
    for statement in statements:
        if "ROLE" not in statement:  # which the test of roles makes
            connection.execute(statement)
    (of_dagster,) = re.findall(r'--command="(.+)"', OPERATIONS)
    with psycopg.connect(dagster_postgres_url) as dagster:
        dagster.execute(of_dagster)
