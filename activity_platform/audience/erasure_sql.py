"""The erasures' statements. `user_id` is that of the row, `line_user_id` LINE's."""

from __future__ import annotations

#: Primary key.
FIND_HASH = "SELECT hash FROM line_oa WHERE id = %(line_oa_id)s"
ERASE_OA = "DELETE FROM line_oa WHERE id = %(line_oa_id)s"

#: By the unique key (line_oa_id, line_user_id).
FIND_USER = "SELECT id FROM line_user WHERE line_oa_id = %(line_oa_id)s AND line_user_id = %(line_user_id)s"
#: By the primary key (line_oa_id, id), in its order, as every writer of line_user goes.
ERASE_USERS = """
    DELETE FROM line_user WHERE line_oa_id = %(line_oa_id)s AND id IN (
        SELECT id FROM line_user WHERE line_oa_id = %(line_oa_id)s
            AND (%(user_id)s::bigint IS NULL OR id = %(user_id)s)
        ORDER BY id LIMIT %(most)s FOR UPDATE
    ) RETURNING line_user_id
"""

#: The OA's audiences, deleted ones too, with what says where their files are. Reads the table.
AUDIENCES = """
    SELECT a.id, a.info ->> 'filePath', a.info ->> 'members',
           ARRAY(SELECT path FROM audience_import i
                 CROSS JOIN LATERAL (VALUES (i.result_path), (i.rejects_path)) AS file (path)
                 WHERE i.audience_id = a.id AND path IS NOT NULL),
           ARRAY(SELECT DISTINCT i.source_path FROM audience_import i
                 WHERE i.audience_id = a.id AND i.source_path IS NOT NULL)
    FROM audience a WHERE a.line_oa_id = %(line_oa_id)s ORDER BY a.id
"""
#: Primary key. The number of members is that of the file which the multicast reads.
TELL_MEMBERS = """
    UPDATE audience SET info = info || jsonb_build_object('members', %(members)s::bigint)
    WHERE id = %(audience_id)s AND info ->> 'filePath' = %(path)s
      AND info ->> 'members' <> %(members)s::text
"""

#: Attempts whose worker gives signs of life: it may have read a file before it was rewritten. One that has no
#: import yet may be of any OA. The table holds a row a message of the last weeks.
RUNNING = """
    SELECT t.queue, t.message_id, t.attempts FROM message_attempt t
    LEFT JOIN audience_import i USING (queue, message_id)
    LEFT JOIN audience a ON a.id = i.audience_id
    WHERE t.heartbeat_at > clock_timestamp() - %(silent)s
      AND coalesce(a.line_oa_id, %(line_oa_id)s) = %(line_oa_id)s
"""

#: Reads the outbox: no index knows whose a firing is. Row ids may repeat from OA to OA.
ERASE_FIRINGS_OF_USER = """
    DELETE FROM trigger_firing WHERE user_id = %(user_id)s
      AND audience_id IN (SELECT id FROM audience WHERE line_oa_id = %(line_oa_id)s)
"""
#: Stored plans are those of running commands; primary keys.
ERASE_CHANGES_OF_USER = """
    DELETE FROM audience_change WHERE user_id = %(user_id)s AND import_id IN (
        SELECT i.id FROM audience a JOIN audience_import i ON i.audience_id = a.id
        WHERE a.line_oa_id = %(line_oa_id)s AND i.status = 'running'
    )
"""

#: By the unique key, which starts with rule_id.
ERASE_FIRINGS_OF_RULES = """
    DELETE FROM trigger_firing WHERE id = ANY (ARRAY(
        SELECT id FROM trigger_firing
        WHERE rule_id IN (SELECT id FROM trigger_rule WHERE line_oa_id = %(line_oa_id)s) LIMIT %(most)s
    ))
"""
#: Those of rules that were deleted. Reads the outbox once more.
ERASE_OTHER_FIRINGS = """
    DELETE FROM trigger_firing
    WHERE audience_id IN (SELECT id FROM audience WHERE line_oa_id = %(line_oa_id)s)
"""
#: Reads the table of rules, which is short.
ERASE_RULES = "DELETE FROM trigger_rule WHERE line_oa_id = %(line_oa_id)s"

#: By audience_import_audience and primary keys, an audience in a transaction.
ERASE_PLANS = """
    DELETE FROM audience_change
    WHERE import_id IN (SELECT id FROM audience_import WHERE audience_id = %(audience_id)s)
"""
ERASE_ATTEMPTS = """
    DELETE FROM message_attempt WHERE (queue, message_id) IN (
        SELECT queue, message_id FROM audience_import WHERE audience_id = %(audience_id)s)
"""
ERASE_PROCESSED = """
    DELETE FROM processed_message WHERE (queue, message_id) IN (
        SELECT queue, message_id FROM audience_import WHERE audience_id = %(audience_id)s)
"""
ERASE_IMPORTS = "DELETE FROM audience_import WHERE audience_id = %(audience_id)s"
ERASE_AUDIENCE = "DELETE FROM audience WHERE id = %(audience_id)s"

#: For a look before: reads the outbox.
COUNT_OF_USER = """
    SELECT (SELECT count(*) FROM line_user u WHERE u.line_oa_id = %(line_oa_id)s AND u.id = %(user_id)s),
           (SELECT coalesce(sum(cardinality(u.audience_ids)), 0)::bigint FROM line_user u
            WHERE u.line_oa_id = %(line_oa_id)s AND u.id = %(user_id)s),
           (SELECT count(*) FROM trigger_firing f WHERE f.user_id = %(user_id)s
                AND f.audience_id IN (SELECT id FROM audience WHERE line_oa_id = %(line_oa_id)s))
"""
COUNT_OF_OA = """
    SELECT (SELECT count(*) FROM line_user WHERE line_oa_id = %(line_oa_id)s),
           (SELECT count(*) FROM audience WHERE line_oa_id = %(line_oa_id)s),
           (SELECT count(*) FROM trigger_firing
            WHERE audience_id IN (SELECT id FROM audience WHERE line_oa_id = %(line_oa_id)s))
"""
