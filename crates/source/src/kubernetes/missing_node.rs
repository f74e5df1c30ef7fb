//! Our Node does not exist: usually the name is wrong, so the log says which names exist.

use portwarden_model::manifest;

use super::client::Client;
use super::error::RequestError;
use super::list::{Page, Start};
use super::resource::Resource;
use crate::wire::Item;

/// Names in the message.
const SHOWN: usize = 10;

/// Logs the names of the Nodes that exist.
pub(crate) async fn report(client: Client, node: String) {
    match names(&client).await {
        Ok(exist) => tracing::warn!(
            node,
            exist = summary(&exist),
            "The API server has no Node of this name; unless the kubelet is about to register it, set --hostname-override to the right one"
        ),
        Err(error) => tracing::debug!(%error, "Cannot list the Nodes that exist"),
    }
}

/// The names on the first page of the list.
async fn names(client: &Client) -> Result<Vec<String>, RequestError> {
    let start = Start::First { version: "0".to_owned(), paged: true };
    let mut page = Page::<manifest::Node>::open(client, &Resource::all_nodes(), &start).await?;
    let mut names = Vec::new();
    while let Some(items) = page.next().await? {
        names.extend(items.into_iter().filter_map(|item| match item {
            Item::Object(node) => Some(node.metadata.name),
            Item::Bad(_) => None,
        }));
    }
    names.sort_unstable();
    Ok(names)
}

/// Such as `a, b and 3 more`.
fn summary(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        few if few.len() <= SHOWN => few.join(", "),
        many => format!("{} and {} more", many[..SHOWN].join(", "), many.len() - SHOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut() {
        let names = |count: usize| (0..count).map(|at| format!("n{at}")).collect::<Vec<_>>();
        assert_eq!(summary(&names(0)), "none");
        assert_eq!(summary(&names(2)), "n0, n1");
        assert!(summary(&names(13)).ends_with("n9 and 3 more"));
    }
}
