"""Settings: configuration files, URLs and environment variables as typed values."""
