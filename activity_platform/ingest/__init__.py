"""The HTTP app: takes events in, gives edges out."""
