//! What is told through the API as Events, beside the log.

use std::sync::{Arc, Mutex, PoisonError};

use portwarden_model::NamespacedName;
use portwarden_source::kubernetes::{EventRecorder, NewEvent, Regarding, Severity};

/// Takes Events, if there is an API to tell them to. Cheap to clone; never blocks.
#[derive(Debug, Clone)]
pub struct Events {
    node: String,
    recorder: Arc<Mutex<Option<EventRecorder>>>,
}

impl Events {
    /// For the proxy of this Node. Nothing is told before [`Events::attach`].
    pub fn new(node: &str) -> Self {
        Events { node: node.to_owned(), recorder: Arc::default() }
    }

    /// Tells Events to this API from now on.
    pub fn attach(&self, recorder: Option<EventRecorder>) {
        *self.recorder.lock().unwrap_or_else(PoisonError::into_inner) = recorder;
    }

    /// The proxy started.
    pub fn started(&self) {
        self.on_node(Severity::Normal, "Starting", String::new());
    }

    /// Something is wrong with this node's proxy.
    pub fn node_warning(&self, reason: &str, note: String) {
        self.on_node(Severity::Warning, reason, note);
    }

    /// Something is wrong with a Service.
    pub fn service_warning(&self, service: NamespacedName, reason: &str, action: &str, note: String) {
        self.record(Regarding::Service(service), Severity::Warning, reason, action, note);
    }

    fn on_node(&self, severity: Severity, reason: &str, note: String) {
        self.record(Regarding::Node(self.node.clone()), severity, reason, "StartKubeProxy", note);
    }

    fn record(&self, regarding: Regarding, severity: Severity, reason: &str, action: &str, note: String) {
        if let Some(recorder) = &*self.recorder.lock().unwrap_or_else(PoisonError::into_inner) {
            recorder.record(NewEvent {
                regarding,
                severity,
                reason: reason.to_owned(),
                action: action.to_owned(),
                note,
            });
        }
    }
}
