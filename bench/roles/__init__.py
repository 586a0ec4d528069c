"""Scripts that a benchmark runs as separate processes, one for each role."""
