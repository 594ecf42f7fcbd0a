"""The tables as SQLAlchemy sees them, for the peers that are written with it. Needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Engine, Float, Identity, Text, create_engine, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    type_annotation_map = {  # noqa: RUF012 (as SQLAlchemy documents it)
        int: BigInteger,
        str: Text,
        float: Float,
        datetime: TIMESTAMP(timezone=True),
        list[int]: ARRAY(BigInteger),
        dict[str, Any]: JSONB,
    }


class ActivityEvent(Base):
    __tablename__ = "activity_events"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    user_id: Mapped[str]
    verb: Mapped[str]
    object_type: Mapped[str]
    object_id: Mapped[str]
    surface: Mapped[str | None]
    context: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = mapped_column(server_default=text("clock_timestamp()"))


class InteractionEdge(Base):
    __tablename__ = "interaction_edges"
    actor_id: Mapped[str] = mapped_column(primary_key=True)
    edge_type: Mapped[str] = mapped_column(primary_key=True)
    target_type: Mapped[str] = mapped_column(primary_key=True)
    target_id: Mapped[str] = mapped_column(primary_key=True)
    weight: Mapped[float]
    event_count: Mapped[int]
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]


class LineUser(Base):
    __tablename__ = "line_user"
    line_oa_id: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    organization_id: Mapped[int]
    line_user_id: Mapped[str]
    language: Mapped[str | None]
    audience_ids: Mapped[list[int]]
    last_activity_type: Mapped[str | None]
    last_activity_status: Mapped[str | None]
    last_activity_date: Mapped[datetime | None]


class AudienceChange(Base):
    __tablename__ = "audience_change"
    import_id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(primary_key=True)
    change: Mapped[str]


class TriggerRule(Base):
    __tablename__ = "trigger_rule"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    audience_id: Mapped[int]
    on_event: Mapped[str]
    conditions: Mapped[dict[str, Any]]


class TriggerFiring(Base):
    __tablename__ = "trigger_firing"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    rule_id: Mapped[int]
    user_id: Mapped[int]
    audience_id: Mapped[int]
    on_event: Mapped[str]
    queue: Mapped[str]
    message_id: Mapped[str]


def engine(database_url: str) -> Engine:
    """An engine on psycopg 3, as SQLAlchemy's documents advise. To be disposed of by the caller."""
    return create_engine(with_driver(database_url, "psycopg"))


@contextmanager
def session(database_url: str) -> Iterator[Session]:
    """A session of an engine of its own, already connected."""
    own = engine(database_url)
    try:
        with Session(own) as opened:
            opened.connection()
            yield opened
    finally:
        own.dispose()


def with_driver(database_url: str, driver: str) -> str:
    return database_url.replace("postgresql://", f"postgresql+{driver}://", 1)
