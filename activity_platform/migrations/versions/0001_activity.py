"""The activity log, the edges folded from it, and how far the fold has come.

activity_events has neither a unique key nor a foreign key nor a trigger: nothing may slow the log down,
and a sharded log could not have them. Its partitions are made by the partition maintenance, in UTC months;
DEFAULT takes what no month does.

Weights are finite and not negative. They are multiples of 0.5 (activity/vocabulary.py), which float8 adds
exactly up to 2^52. Only the primary key is indexed on interaction_edges, and pages are filled by half: a fold
may update every row of a page in one transaction, and all of these updates are HOT (at 80 % a quarter was).

Ids and words are compared as bytes (COLLATE "C") in the log and the edges: sorting is cheap, the primary key
does not depend on the system's locale data, and order is the same on every server.
"""

from alembic import op

revision = "0001"
down_revision = None

SQL = """
CREATE TABLE IF NOT EXISTS activity_events (
    id bigint GENERATED ALWAYS AS IDENTITY,
    user_id text COLLATE "C" NOT NULL,
    verb text COLLATE "C" NOT NULL,
    object_type text COLLATE "C" NOT NULL,
    object_id text COLLATE "C" NOT NULL,
    surface text,
    context jsonb,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
) PARTITION BY RANGE (created_at);

CREATE INDEX IF NOT EXISTS activity_events_created_at ON activity_events USING brin (created_at)
    WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE IF NOT EXISTS activity_events_default PARTITION OF activity_events DEFAULT;

CREATE TABLE IF NOT EXISTS interaction_edges (
    actor_id text COLLATE "C" NOT NULL,
    edge_type text COLLATE "C" NOT NULL,
    target_type text COLLATE "C" NOT NULL,
    target_id text COLLATE "C" NOT NULL,
    weight double precision NOT NULL CHECK (weight >= 0 AND weight < 'Infinity'),
    event_count bigint NOT NULL CHECK (event_count >= 0),
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    PRIMARY KEY (actor_id, edge_type, target_type, target_id)
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS activity_rollup_state (
    name text PRIMARY KEY,
    watermark timestamptz NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO activity_rollup_state (name, watermark) VALUES ('interaction_edges', 'epoch')
ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS activity_rollup_slice (
    name text NOT NULL,
    lower timestamptz NOT NULL,
    upper timestamptz NOT NULL,
    events bigint NOT NULL,
    edges bigint NOT NULL,
    folded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, upper)
);

CREATE TABLE IF NOT EXISTS idempotency_key (
    user_id text NOT NULL,
    key text NOT NULL,
    accepted integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (user_id, key)
);

CREATE INDEX IF NOT EXISTS idempotency_key_created_at ON idempotency_key USING brin (created_at);
"""


def upgrade() -> None:
    op.execute(SQL)
