"""What all stages stand on: dtypes, the state of a thread, caches, random streams, thresholds, plans as plain data."""
