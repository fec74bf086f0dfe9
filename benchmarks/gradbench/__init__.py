"""GradBench's evals on tracegrad: `tool` speaks the suite's protocol, `against` runs evals of a copy of the suite on it and other tools."""
