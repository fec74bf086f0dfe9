"""The random numbers of torch's CPU generator, for programs written for torch. Start at `generator.Mersenne`."""
