"""The commands of `mooring`, each in a module of its name; `groups` is in `services`."""
