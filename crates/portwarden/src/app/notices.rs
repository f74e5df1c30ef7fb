//! Records notices of the engine as Events.

use portwarden_model::{NamespacedName, Problem};
use tokio::sync::mpsc;

use crate::engine::Notice;
use crate::events::Events;

/// Runs until the engine has ended.
pub(super) async fn forward(mut notices: mpsc::Receiver<Notice>, events: Events) {
    while let Some(notice) = notices.recv().await {
        match notice {
            Notice::Refused { family, refused } => {
                let note = format!("the kernel refuses this Service for {family}: {}", refused.reason);
                events.service_warning(refused.service, "FailedToProxyService", "Sync", note);
            }
            Notice::Problem(problem) => {
                if let Some(service) = service(&problem) {
                    let note = format!("{}: {}", problem.field, problem.text);
                    events.service_warning(service, "InvalidField", "Read", note);
                }
            }
        }
    }
}

/// The Service that a problem concerns. Controllers write slices and do not read Events; files cannot have any.
fn service(problem: &Problem) -> Option<NamespacedName> {
    let (namespace, name) = problem.object.strip_prefix("Service ")?.split_once('/')?;
    Some(NamespacedName::new(namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_with_a_service_is_about_that_service() {
        let about = |object: &str| {
            service(&Problem { object: object.to_owned(), field: String::new(), text: String::new() })
        };
        assert_eq!(about("Service demo/web"), Some(NamespacedName::new("demo", "web")));
        assert_eq!(about("EndpointSlice demo/web"), None);
        assert_eq!(about("/etc/manifests/a.yaml"), None);
    }
}
