"""What Dagster shows and runs of each domain. With definitions.py, the only place that knows Dagster.

These modules evaluate their annotations at once: Dagster reads the types of contexts and resources from them.
"""
