"""`python -m benchmarks.programs`: see timing.py."""

from benchmarks.programs.timing import main

main()
