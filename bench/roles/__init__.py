"""One script a role, each run as a process of its own by what measures it."""
