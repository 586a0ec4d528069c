"""What is registered, live: one picture for the API, the stream, metrics, alerts and checks."""
