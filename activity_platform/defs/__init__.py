"""What Dagster shows and runs of each domain. With definitions.py, the only place that knows Dagster."""
