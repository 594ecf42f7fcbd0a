-- Roles that may do what one program of the platform needs, and no more.
--
--     psql --single-transaction --file deploy/roles.sql DATABASE_URL
--
-- Run it as a superuser after `activity-platform migrate`, and again after each later one: it can be repeated. The roles
-- can't log in. Make a login for each program, which then is the role:
--
--     CREATE ROLE ingest LOGIN PASSWORD '…' IN ROLE activity_ingest;
--     ALTER ROLE ingest SET role = 'activity_ingest';
--
--     activity_owner    owns the tables                     activity-platform migrate
--     activity_ingest   adds events                         activity-platform ingest
--     activity_ranker   reads edges                         the ranker, activity-platform edges
--     activity_fold     folds events into edges             activity-platform rollup outside Dagster
--     activity_dagster  everything that runs do             the code server and its runs
--
-- docs/operations.md says more. Dagster's own database is another one: give it an owner of its own.

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'activity_owner', 'activity_ingest', 'activity_ranker', 'activity_fold', 'activity_dagster'
    ] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        END IF;
    END LOOP;
END
$$;

-- Whoever maintains the log's months must own it, and own or create its partitions.
GRANT USAGE, CREATE ON SCHEMA public TO activity_owner;
DO $$
DECLARE
    relation regclass;
BEGIN
    FOR relation IN
        SELECT oid FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')
          AND relowner <> 'activity_owner'::regrole
    LOOP
        -- Who works as the owner until now still can.
        EXECUTE format('GRANT activity_owner TO %s', (SELECT relowner::regrole FROM pg_class WHERE oid = relation));
        EXECUTE format('ALTER TABLE %s OWNER TO activity_owner', relation); -- for views, too; identities follow
    END LOOP;
END
$$;
GRANT activity_owner TO activity_dagster;

-- Every program looks whether the database is migrated.
GRANT USAGE ON SCHEMA public TO activity_ingest, activity_ranker, activity_fold;
GRANT SELECT ON alembic_version TO activity_ingest, activity_ranker, activity_fold;

-- Ingest adds whole requests. After a COMMIT without an answer it looks for its own rows, by transaction and time.
GRANT INSERT (user_id, verb, object_type, object_id, surface, context) ON activity_events TO activity_ingest;
GRANT SELECT (xmin, created_at) ON activity_events TO activity_ingest;
GRANT SELECT, INSERT, UPDATE ON idempotency_key TO activity_ingest;
-- GET /api/v1/activity/edges, and what /metrics tells of the fold and of rows that no month took.
GRANT SELECT ON interaction_edges, activity_rollup_state TO activity_ingest;
GRANT SELECT (created_at) ON activity_events_default TO activity_ingest;

GRANT SELECT ON interaction_edges TO activity_ranker;

-- The fold's lock is a row of the state, hence UPDATE. A writer whose start it can't see would stop it.
GRANT SELECT ON activity_events TO activity_fold;
GRANT SELECT, INSERT, UPDATE ON interaction_edges, activity_rollup_slice TO activity_fold;
GRANT SELECT, UPDATE ON activity_rollup_state TO activity_fold;
GRANT pg_read_all_stats TO activity_fold, activity_dagster;
