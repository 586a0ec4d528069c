"""Reading tenants: immutable snapshots of the store that follow its changes."""
