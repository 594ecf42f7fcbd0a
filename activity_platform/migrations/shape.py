"""What tables look like in the catalog, and what existing ones lack of what the migrations make.

`shape.json` is what the catalog holds after all migrations, for tables and views; a test compares the two.
Names of indexes and constraints don't count, nor do columns of the owner's own that we may leave empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import psycopg
from psycopg.rows import class_row

EXPECTED = Path(__file__).with_name("shape.json")
IDENTITY = "identity"

RELATIONS = """
SELECT relname AS name, CASE relkind WHEN 'v' THEN 'view' ELSE 'table' END AS kind,
       coalesce(pg_get_partkeydef(oid), '') AS partitioned
FROM pg_class
WHERE relnamespace = to_regnamespace('public') AND relkind IN ('r', 'p', 'v') AND NOT relispartition
  AND relname <> 'alembic_version'
ORDER BY relname
"""
COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull,
       CASE WHEN attidentity <> '' OR attgenerated <> '' THEN 'identity'
            ELSE coalesce(pg_get_expr(adbin, adrelid), '') END,
       CASE WHEN collname <> 'default' THEN collname ELSE '' END
FROM pg_attribute
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
LEFT JOIN pg_collation ON pg_collation.oid = attcollation
WHERE attrelid = ('public.' || quote_ident(%s))::regclass AND attnum > 0 AND NOT attisdropped
ORDER BY attnum
"""
#: Whole unique indexes, as the sets of their columns.
UNIQUE = """
SELECT ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = indrelid AND attnum = ANY(indkey)
             ORDER BY attname)
FROM pg_index
WHERE indrelid = ('public.' || quote_ident(%s))::regclass
  AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL
ORDER BY 1
"""
#: Method, columns and condition; how it is stored doesn't count.
INDEXES = r"""
SELECT regexp_replace(substring(pg_get_indexdef(indexrelid) FROM 'USING .*'), ' WITH \([^)]*\)', '')
FROM pg_index
WHERE indrelid = ('public.' || quote_ident(%s))::regclass AND NOT indisunique AND indisvalid
ORDER BY 1
"""
CHECKS = """
SELECT pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = ('public.' || quote_ident(%s))::regclass AND contype = 'c' ORDER BY 1
"""


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """`filled_by`: the default's expression, `identity` for columns that fill themselves, or nothing."""

    type: str
    not_null: bool = False
    filled_by: str = ""
    collation: str = ""

    def __str__(self) -> str:
        filled_by = self.filled_by and f"default {self.filled_by}"
        collation = self.collation and f'collate "{self.collation}"'
        return " ".join(filter(None, (self.type, collation, "not null" if self.not_null else "", filled_by)))


class Relation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A table or view. `unique`: sets of columns; `partitioned`: the key, such as `RANGE (created_at)`."""

    kind: str
    columns: dict[str, Column]
    partitioned: str = ""
    unique: tuple[tuple[str, ...], ...] = ()
    indexes: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()


class Lack(msgspec.Struct, frozen=True):
    """One thing that a table lacks: which part of it, what is wanted, what is there."""

    table: str
    part: str
    wanted: str
    found: str


class _Head(msgspec.Struct):
    name: str
    kind: str
    partitioned: str


def expected() -> dict[str, Relation]:
    """What the migrations make."""
    return msgspec.json.decode(EXPECTED.read_bytes(), type=dict[str, Relation])


def read(connection: psycopg.Connection) -> dict[str, Relation]:
    """What there is in the schema `public`, without partitions. Reads the catalog alone."""
    with connection.cursor(row_factory=class_row(_Head)) as cursor:
        heads = cursor.execute(RELATIONS).fetchall()
    return {head.name: _relation(connection, head) for head in heads}


def lacking(found: Mapping[str, Relation], wanted: Mapping[str, Relation]) -> Iterator[Lack]:
    """What those of `wanted` lack that are there at all."""
    for name, relation in wanted.items():
        if name in found:
            yield from _lacking(name, found[name], relation)


def _relation(connection: psycopg.Connection, head: _Head) -> Relation:
    columns = {
        name: Column(type_, not_null, filled_by, collation)
        for name, type_, not_null, filled_by, collation in connection.execute(COLUMNS, [head.name])
    }
    unique, indexes, checks = (
        tuple(value for (value,) in connection.execute(statement, [head.name]))
        for statement in (UNIQUE, INDEXES, CHECKS)
    )
    return Relation(head.kind, columns, head.partitioned, tuple(map(tuple, unique)), indexes, checks)


def _lacking(table: str, found: Relation, wanted: Relation) -> Iterator[Lack]:
    if found.kind != wanted.kind:
        yield Lack(table, "kind", f"a {wanted.kind}", f"a {found.kind}")
        return
    if found.partitioned != wanted.partitioned:
        yield Lack(table, "partitioning", wanted.partitioned or "none", found.partitioned or "none")
    for name, column in wanted.columns.items():
        there = found.columns.get(name)
        if there is None or (wanted.kind == "table" and not _serves(there, column)):
            yield Lack(table, f"column {name}", str(column), str(there or "none"))
    if wanted.kind == "table":
        yield from _unfillable(table, found, wanted)
    yield from _missing(table, "unique", map(_listed, wanted.unique), map(_listed, found.unique))
    yield from _missing(table, "index", wanted.indexes, found.indexes)
    yield from _missing(table, "check", wanted.checks, found.checks)


def _missing(table: str, part: str, wanted: Iterable[str], found: Iterable[str]) -> Iterator[Lack]:
    there = set(found)
    yield from (Lack(table, part, text, "none") for text in wanted if text not in there)


def _listed(columns: tuple[str, ...]) -> str:
    return f"({', '.join(columns)})"


def _serves(there: Column, wanted: Column) -> bool:
    if (there.type, there.not_null, there.collation) != (wanted.type, wanted.not_null, wanted.collation):
        return False
    if wanted.filled_by == IDENTITY:
        return bool(there.filled_by)
    return not wanted.filled_by or there.filled_by == wanted.filled_by


def _unfillable(table: str, found: Relation, wanted: Relation) -> Iterator[Lack]:
    """Columns of the owner's own that stop our inserts."""
    for name, column in found.columns.items():
        if name not in wanted.columns and column.not_null and not column.filled_by:
            yield Lack(table, f"column {name}", "nullable, or with a default: we don't fill it", str(column))
