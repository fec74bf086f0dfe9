"""A program shown to people: kernels and explanation (`report`), Python (`python_source`), times (`profiling`)."""
