"""Writing tenants: plans, transactions, deletion, history and encryption."""
