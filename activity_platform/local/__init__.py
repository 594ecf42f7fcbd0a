"""The embedded stack: PostgreSQL, Valkey, S3 and LINE on this machine, for demos, development and tests."""
