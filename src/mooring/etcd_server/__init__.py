"""etcd's v3 gRPC API in front of the embedded engine: a module for each service, and a server
that binds them to a port. Responses, error codes and error texts are those of etcd 3.5."""
