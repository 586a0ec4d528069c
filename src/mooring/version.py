"""The version of Mooring itself."""

VERSION = "0.1.0"
