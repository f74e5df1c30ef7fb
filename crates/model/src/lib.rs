//! The pure part: objects, cluster, endpoint choice, desired state.
