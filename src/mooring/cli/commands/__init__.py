"""The commands of `mooring`, one file for each command group."""
