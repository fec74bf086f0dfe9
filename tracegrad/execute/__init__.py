"""From graphs to values: what is recorded (`program`), which backend runs it (`policy`), what is pending (`deferred`, `realize`)."""
