"""`python -m mooring.cli`: the command without its script."""

from mooring.cli import main

main()
