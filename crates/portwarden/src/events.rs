//! Kubernetes Events about this Node and its Services, in addition to the log.

use std::sync::{Arc, Mutex, PoisonError};

use portwarden_model::NamespacedName;
use portwarden_source::kubernetes::{EventRecorder, NewEvent, Regarding, Severity};

/// Records Events, if there is an API server. Cheap to clone; never blocks.
#[derive(Debug, Clone, Default)]
pub struct Events(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    node: String,
    recorder: Option<EventRecorder>,
}

impl Events {
    /// Sends Events through this recorder, as the proxy of this Node. Earlier Events are dropped.
    pub fn attach(&self, node: &str, recorder: Option<EventRecorder>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = State { node: node.to_owned(), recorder };
    }

    /// The proxy started.
    pub fn started(&self) {
        self.on_node(Severity::Normal, "Starting", String::new());
    }

    /// A problem of the proxy on this node.
    pub fn node_warning(&self, reason: &str, note: String) {
        self.on_node(Severity::Warning, reason, note);
    }

    /// A problem of a Service.
    pub fn service_warning(&self, service: NamespacedName, reason: &str, action: &str, note: String) {
        self.record(Severity::Warning, reason, action, note, |_| Regarding::Service(service));
    }

    fn on_node(&self, severity: Severity, reason: &str, note: String) {
        self.record(severity, reason, "StartKubeProxy", note, |node| Regarding::Node(node.to_owned()));
    }

    fn record(
        &self,
        severity: Severity,
        reason: &str,
        action: &str,
        note: String,
        regarding: impl FnOnce(&str) -> Regarding,
    ) {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(recorder) = &state.recorder {
            let (reason, action) = (reason.to_owned(), action.to_owned());
            recorder.record(NewEvent { regarding: regarding(&state.node), severity, reason, action, note });
        }
    }
}
