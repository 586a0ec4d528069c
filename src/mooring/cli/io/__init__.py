"""What every command uses: connections, options, output, progress and child processes."""
