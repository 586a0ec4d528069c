"""The registry on a key-value store: etcd or the embedded one."""
