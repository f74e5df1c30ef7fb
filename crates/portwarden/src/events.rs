//! What is told through the API as Events, beside the log.

use portwarden_model::NamespacedName;
use tokio::sync::mpsc;

/// Something worth an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Whether something is wrong.
    pub warning: bool,
    /// What it is about.
    pub regarding: Regarding,
    /// Why, in one word.
    pub reason: &'static str,
    /// What was being done, in one word.
    pub action: &'static str,
    /// The whole story.
    pub note: String,
}

/// What an Event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Regarding {
    /// The own Node.
    Node,
    /// A Service.
    Service(NamespacedName),
    /// An EndpointSlice.
    EndpointSlice(NamespacedName),
}

/// Takes Events. Cheap to clone; never blocks.
#[derive(Debug, Clone)]
pub struct Events(mpsc::Sender<Event>);

impl Events {
    /// Both ends. Beyond `limit` Events that wait, new ones are left out, as the reference does; they are in the log too.
    pub fn new(limit: usize) -> (Self, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(limit);
        (Events(sender), receiver)
    }

    /// Sends an Event on its way.
    pub fn emit(&self, event: Event) {
        let _ = self.0.try_send(event);
    }
}

impl Event {
    /// Something is wrong with a Service.
    pub fn service_warning(
        service: NamespacedName,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) -> Self {
        Event { warning: true, regarding: Regarding::Service(service), reason, action, note }
    }

    /// Something is wrong with this node's proxy.
    pub fn node_warning(reason: &'static str, note: String) -> Self {
        Event { warning: true, regarding: Regarding::Node, reason, action: "StartKubeProxy", note }
    }

    /// The proxy started.
    pub fn started() -> Self {
        Event {
            warning: false,
            regarding: Regarding::Node,
            reason: "Starting",
            action: "StartKubeProxy",
            note: String::new(),
        }
    }
}
