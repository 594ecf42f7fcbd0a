"""Audiences: who is in them, by which command, and what that fires."""
