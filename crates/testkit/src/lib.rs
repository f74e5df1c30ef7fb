//! Namespaces, traffic, an API server and scenarios for tests.
