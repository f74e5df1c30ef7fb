//! What the engine noticed, told as Events.

use portwarden_model::{NamespacedName, Problem};
use tokio::sync::mpsc;

use crate::engine::Notice;
use crate::events::{Event, Events, Regarding};

/// Passes notices on until the engine has ended.
pub(super) async fn forward(mut notices: mpsc::Receiver<Notice>, events: Events) {
    while let Some(notice) = notices.recv().await {
        if let Some(event) = event(notice) {
            events.emit(event);
        }
    }
}

fn event(notice: Notice) -> Option<Event> {
    match notice {
        Notice::Refused { family, refused } => {
            let note = format!("the kernel refuses this Service for {family}: {}", refused.reason);
            Some(Event::service_warning(refused.service, "FailedToProxyService", "Sync", note))
        }
        Notice::Problem(problem) => Some(Event {
            warning: true,
            regarding: regarding(&problem)?,
            reason: "InvalidField",
            action: "Read",
            note: format!("{}: {}", problem.field, problem.text),
        }),
    }
}

/// The object that a problem is about; files of manifests are none.
fn regarding(problem: &Problem) -> Option<Regarding> {
    let (kind, name) = problem.object.split_once(' ')?;
    let namespaced = || name.split_once('/').map(|(namespace, name)| NamespacedName::new(namespace, name));
    match kind {
        "Service" => namespaced().map(Regarding::Service),
        "EndpointSlice" => namespaced().map(Regarding::EndpointSlice),
        "Node" => Some(Regarding::Node),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_becomes_an_event_about_its_object() {
        let problem = |object: &str| Problem {
            object: object.to_owned(),
            field: "spec.externalIPs[0]".to_owned(),
            text: "\"x\" is not an address; left out".to_owned(),
        };
        let about = |object: &str| event(Notice::Problem(problem(object))).map(|event| event.regarding);
        let web = NamespacedName::new("demo", "web");
        assert_eq!(about("Service demo/web"), Some(Regarding::Service(web.clone())));
        assert_eq!(about("EndpointSlice demo/web"), Some(Regarding::EndpointSlice(web)));
        assert_eq!(about("Node node-a"), Some(Regarding::Node));
        assert_eq!(about("/etc/manifests/a.yaml"), None);
    }
}
