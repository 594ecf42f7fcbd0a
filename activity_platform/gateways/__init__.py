"""One outside system a file, no decisions. Failures leave as the types of `activity_platform.failures`."""
