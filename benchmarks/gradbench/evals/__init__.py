"""One module an eval, with the suite's names. A function takes the suite's input and gives (output, nanoseconds of each run)."""
