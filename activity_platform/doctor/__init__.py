"""Looks at everything the platform stands on and says what is wrong and how to cure it.

Each examination looks at one outside system through connections of its own, all at the same time, and none
waits for another or stops because of one. What it finds is a line with a status: red is broken or will lose
something, warn deserves a look.
"""

from activity_platform.doctor.examine import examine
from activity_platform.doctor.finding import Finding, Status

__all__ = ["Finding", "Status", "examine"]
