"""The console in a real Chromium, with a real server."""
