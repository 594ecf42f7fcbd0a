"""The commands of the command line. Each unpacks, calls one function and prints its result.

Imports stand inside the commands: a command loads what it needs and no more.
"""
