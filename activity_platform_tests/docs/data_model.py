"""docs/data-model.md and the table of docs/privacy.md, from the migrated database and `descriptions`."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from activity_platform.migrations import shape
from activity_platform_tests.docs.descriptions import TABLES, Described, Personal
from activity_platform_tests.docs.markdown import table

#: Every index with all that it is, but for its name.
_INDEXES = r"""
SELECT indisprimary, indisunique,
       regexp_replace(pg_get_indexdef(indexrelid), '^CREATE (UNIQUE )?INDEX \S+ ON (ONLY )?\S+ USING ', '')
FROM pg_index
WHERE indrelid = ('public.' || quote_ident(%s))::regclass AND indisvalid
ORDER BY NOT indisprimary, NOT indisunique, 3
"""
_FILL = """
SELECT coalesce(array_to_string(reloptions, ', '), '') FROM pg_class
WHERE oid = ('public.' || quote_ident(%s))::regclass
"""


def tables(connection: psycopg.Connection) -> str:
    """A section for each table and view, those of a domain together."""
    relations = shape.read(connection)
    assert relations.keys() == TABLES.keys(), "describe every table in descriptions.py, and no other"
    return "\n\n".join(_section(connection, name, relations[name]) for name in TABLES)


def personal_data() -> str:
    """Every column that holds personal data, how long, and what removes it."""
    rows = [
        (
            f"`{name}`",
            ", ".join(f"`{column}`" for column in described.personal),
            described.kept,
            described.removed_by,
        )
        for name, described in TABLES.items()
        if described.personal
    ]
    return table(("Table", "Columns", "Kept", "Removed by"), rows)


def _section(connection: psycopg.Connection, name: str, relation: shape.Relation) -> str:
    described = TABLES[name]
    assert relation.columns.keys() == described.columns.keys(), f"describe the columns of {name} as they are"
    parts = [
        f"## {name}",
        described.about,
        _columns(relation, described),
        *_facts(connection, name, relation),
    ]
    return "\n\n".join(parts)


def _columns(relation: shape.Relation, described: Described) -> str:
    rows = [
        (f"`{name}`", f"`{column}`", *_told(described.columns[name]))
        for name, column in relation.columns.items()
    ]
    return table(("Column", "Type", "", "Personal"), rows)


def _told(about: str | Personal) -> tuple[str, str]:
    return (about.about, "yes") if isinstance(about, Personal) else (about, "")


def _facts(connection: psycopg.Connection, name: str, relation: shape.Relation) -> Iterator[str]:
    if relation.kind == "view":
        return
    lines = [f"- Partitioned by `{relation.partitioned}`."] if relation.partitioned else []
    for is_primary, is_unique, definition in connection.execute(_INDEXES, [name]):
        kind = "Primary key" if is_primary else "Unique" if is_unique else "Index"
        lines.append(f"- {kind}: `{definition.removeprefix('btree ') if is_primary else definition}`")
    lines += [f"- {check.replace('CHECK', 'Check: `CHECK', 1)}`" for check in relation.checks]
    for (options,) in connection.execute(_FILL, [name]):
        lines += [f"- Stored with `{options}`."] if options else []
    if lines:
        yield "\n".join(lines)
