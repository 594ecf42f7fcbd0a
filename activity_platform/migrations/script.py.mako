"""${message}"""

from alembic import op

revision = "${up_revision}"
down_revision = "${down_revision}"

SQL = """
"""


def upgrade() -> None:
    op.execute(SQL)
