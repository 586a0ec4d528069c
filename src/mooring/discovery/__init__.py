"""Client-side discovery: which instances there are, which of them may be called, and which one is
called next."""
