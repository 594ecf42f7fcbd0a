"""Alembic's entry: each migration in a transaction of its own, on the connection that `upgrade` lends."""

from alembic import context

with context.config.attributes["engine"].connect() as connection:
    context.configure(connection=connection, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()
