"""Finding the tenant of a request."""
