"""What conquiet costs next to the loop one would write by hand: `python -m benchmarks`."""
