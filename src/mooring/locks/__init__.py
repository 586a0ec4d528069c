"""Locks, read-write locks, semaphores, elections and barriers on one fair `queue`, and fencing."""
