"""Interaction events, affinity edges, LINE audiences and last activity as one Dagster project."""

__version__ = "0.1.0"

#: How the platform names itself where it asks others over HTTP.
USER_AGENT = f"activity-platform/{__version__}"
