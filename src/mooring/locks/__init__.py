"""Locks, elections, semaphores and barriers: one fair queue (`queue`) under all of them, and
fencing for what lies outside the store (`guard`)."""
