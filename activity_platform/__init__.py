"""Interaction events, affinity edges, LINE audiences and last activity as one Dagster project."""

__version__ = "0.1.0"
