"""The documents are true: what can be generated is, commands exist, examples run, links lead somewhere."""
