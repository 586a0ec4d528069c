"""The face of the embedded engine over etcd's v3 gRPC API: a module for each service, and a
server that binds them to a port. Answers, error codes and error texts are those of etcd 3.5."""
