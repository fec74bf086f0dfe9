"""How a program tells what it found: one line of JSON for each model."""

import json
import sys
import time
import traceback


def report(names, run):
    """Print, for each name, what run(name) returns (numbers and lists by name) and the seconds that it took, or its error."""
    for name in names:
        start = time.perf_counter()
        try:
            found = run(name)
        except Exception:
            found = {"error": traceback.format_exc()}
        sys.stdout.write(json.dumps({"name": name, "seconds": time.perf_counter() - start, **found}) + "\n")
        sys.stdout.flush()
