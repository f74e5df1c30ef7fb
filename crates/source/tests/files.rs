//! The `files` source with a real folder: its first lists, and how it notices each way of changing files.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portwarden_model::{Event, Kind, Problem};
use portwarden_source::files::Files;
use portwarden_source::{Health, Sink, Update};
use tokio::sync::mpsc;

const DEADLINE: Duration = Duration::from_secs(20);

/// A running source and the state that its updates add up to.
struct Follower {
    updates: mpsc::UnboundedReceiver<Update>,
    task: tokio::task::JoinHandle<()>,
    services: BTreeMap<String, String>,
    others: Vec<String>,
    problems: Vec<Problem>,
    health: Option<Health>,
    lists_done: Vec<Kind>,
}

impl Follower {
    fn start(path: &Path) -> Self {
        let (sender, updates) = mpsc::unbounded_channel();
        let sink = Sink::new(1000, move |update| sender.send(update).is_ok());
        let files = Files::new(path, "node-a").expect("the path can be made absolute");
        Follower {
            updates,
            task: tokio::spawn(files.run(sink)),
            services: BTreeMap::new(),
            others: Vec::new(),
            problems: Vec::new(),
            health: None,
            lists_done: Vec::new(),
        }
    }

    /// Takes updates until the condition holds.
    async fn until(&mut self, what: &str, condition: impl Fn(&Follower) -> bool) {
        while !condition(self) {
            let update = tokio::time::timeout(DEADLINE, self.updates.recv()).await;
            match update {
                Ok(Some(update)) => self.take(update),
                Ok(None) => panic!("the source ended while waiting until {what}"),
                Err(_) => {
                    panic!("timed out:  {what}; services: {:?}, problems: {:?}", self.services, self.problems)
                }
            }
        }
    }

    /// Takes updates until the services are these, as `name=clusterIP`.
    async fn until_services(&mut self, wanted: &[&str]) {
        let wanted: Vec<String> = wanted.iter().map(|s| (*s).to_owned()).collect();
        self.until(&format!("services are {wanted:?}"), |f| f.services() == wanted).await;
    }

    fn services(&self) -> Vec<String> {
        self.services.iter().map(|(name, ip)| format!("{name}={ip}")).collect()
    }

    fn take(&mut self, update: Update) {
        match update {
            Update::Problems(problems) => self.problems.extend(problems),
            Update::Status(status) => self.health = Some(status.health),
            Update::Events(batch) => batch.into_events().into_iter().for_each(|event| self.apply(event)),
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::ServiceApplied(service) => {
                let ip = service.cluster_ips.v4.map(|ip| ip.to_string()).unwrap_or_default();
                self.services.insert(service.name.to_string(), ip);
            }
            Event::ServiceDeleted(name) => {
                assert!(self.services.remove(name.as_str()).is_some(), "{name} was not there");
            }
            Event::SliceApplied(slice) => {
                self.others.push(format!("slice {} of {}", slice.name, slice.service));
            }
            Event::NodeApplied(node) => self.others.push(format!("node {}", node.name)),
            Event::ServiceCidrApplied(cidr) => self.others.push(format!("cidr {}", cidr.name)),
            Event::ListDone(kind) => self.lists_done.push(kind),
            Event::ListStarted(kind) => {
                assert!(!self.lists_done.contains(&kind), "one list of {kind:?} is enough");
            }
            other => panic!("not expected: {other:?}"),
        }
    }
}

fn service(name: &str, ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}\n"
    )
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().expect("a folder can be made"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("the file can be written");
    }
}

#[tokio::test]
async fn the_first_look_brings_complete_lists_of_all_kinds() {
    let folder = Folder::new();
    folder.write("web.yaml", &service("web", "10.0.0.1"));
    folder.write(
        "rest.json",
        r#"{"apiVersion":"v1","kind":"List","items":[
            {"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","addressType":"IPv4","ports":[{"port":8080}],
             "metadata":{"name":"web-1","namespace":"demo","labels":{"kubernetes.io/service-name":"web"}},
             "endpoints":[{"addresses":["10.1.0.1"]}]},
            {"apiVersion":"v1","kind":"Node","metadata":{"name":"node-b"}},
            {"apiVersion":"v1","kind":"Node","metadata":{"name":"node-a"}},
            {"apiVersion":"networking.k8s.io/v1","kind":"ServiceCIDR","metadata":{"name":"kubernetes"},"spec":{"cidrs":["10.0.0.0/8"]}},
            {"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"data":{}}]}"#,
    );
    folder.write("notes.txt", "not a manifest");
    folder.write(".hidden.yaml", "[");
    let mut follower = Follower::start(folder.0.path());
    follower.until("it follows", |f| f.health == Some(Health::Following)).await;
    assert_eq!(follower.services(), ["default/web=10.0.0.1"]);
    assert_eq!(follower.others, ["slice demo/web-1 of demo/web", "node node-a", "cidr kubernetes"]);
    assert_eq!(follower.lists_done, Kind::ALL);
    assert_eq!(follower.problems, []);
}

#[tokio::test]
async fn files_that_come_change_and_go_are_noticed() {
    let folder = Folder::new();
    let mut follower = Follower::start(folder.0.path());
    follower.until("it follows", |f| f.health.is_some()).await;
    folder.write("web.yaml", &service("web", "10.0.0.1"));
    follower.until_services(&["default/web=10.0.0.1"]).await;
    folder.write("web.yaml", &service("web", "10.0.0.2"));
    follower.until_services(&["default/web=10.0.0.2"]).await;
    // As editors do: write another file and put it in place.
    folder.write("web.yaml.tmp", &service("web", "10.0.0.3"));
    fs::rename(folder.path("web.yaml.tmp"), folder.path("web.yaml")).expect("it can be renamed");
    follower.until_services(&["default/web=10.0.0.3"]).await;
    fs::remove_file(folder.path("web.yaml")).expect("it can be removed");
    follower.until_services(&[]).await;
}

#[tokio::test]
async fn a_file_that_is_being_written_is_not_read_in_part() {
    let folder = Folder::new();
    folder.write("all.yaml", &format!("{}---\n{}", service("a", "10.0.0.1"), service("b", "10.0.0.2")));
    let mut follower = Follower::start(folder.0.path());
    follower.until("it follows", |f| f.health == Some(Health::Following)).await;
    let mut file = fs::File::create(folder.path("all.yaml")).expect("it can be opened");
    file.write_all(service("a", "10.0.0.9").as_bytes()).expect("it can be written");
    // Something else happens meanwhile; the half-written file still waits for its writer.
    folder.write("other.yaml", &service("c", "10.0.0.3"));
    let early = tokio::time::timeout(Duration::from_millis(300), follower.updates.recv()).await;
    assert!(early.is_err(), "sent while a file was being written: {early:?}");
    file.write_all(format!("---\n{}", service("b", "10.0.0.2")).as_bytes()).expect("it can be written");
    drop(file);
    while !follower.services().contains(&"default/a=10.0.0.9".to_owned()) {
        let update =
            tokio::time::timeout(DEADLINE, follower.updates.recv()).await.expect("in time").expect("it runs");
        follower.take(update);
        assert!(follower.services.contains_key("default/b"), "read while it was written");
    }
}

#[tokio::test]
async fn a_config_map_swap_is_noticed() {
    let folder = Folder::new();
    for (version, ip) in [("..1", "10.0.0.1"), ("..2", "10.0.0.2")] {
        fs::create_dir(folder.path(version)).expect("a folder can be made");
        folder.write(&format!("{version}/web.yaml"), &service("web", ip));
    }
    symlink("..1", folder.path("..data")).expect("a link can be made");
    symlink("..data/web.yaml", folder.path("web.yaml")).expect("a link can be made");
    let mut whole = Follower::start(folder.0.path());
    let mut single = Follower::start(&folder.path("web.yaml"));
    whole.until_services(&["default/web=10.0.0.1"]).await;
    single.until_services(&["default/web=10.0.0.1"]).await;
    symlink("..2", folder.path("..data_tmp")).expect("a link can be made");
    fs::rename(folder.path("..data_tmp"), folder.path("..data")).expect("it can be renamed");
    whole.until_services(&["default/web=10.0.0.2"]).await;
    single.until_services(&["default/web=10.0.0.2"]).await;
}

#[tokio::test]
async fn the_target_of_a_link_out_of_the_folder_is_followed() {
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    elsewhere.write("real.yaml", &service("web", "10.0.0.1"));
    symlink(elsewhere.path("real.yaml"), folder.path("web.yaml")).expect("a link can be made");
    let mut follower = Follower::start(folder.0.path());
    follower.until_services(&["default/web=10.0.0.1"]).await;
    elsewhere.write("real.yaml", &service("web", "10.0.0.2"));
    follower.until_services(&["default/web=10.0.0.2"]).await;
}

#[tokio::test]
async fn a_bad_file_keeps_its_last_good_content_and_the_rest_goes_on() {
    let folder = Folder::new();
    folder.write("a.yaml", &service("a", "10.0.0.1"));
    folder.write("b.yaml", &service("b", "10.0.0.2"));
    let mut follower = Follower::start(folder.0.path());
    follower.until_services(&["default/a=10.0.0.1", "default/b=10.0.0.2"]).await;
    folder.write("a.yaml", "apiVersion: v1\nkind: Service\nspec: {ports: [\n");
    follower.until("the bad file is reported", |f| !f.problems.is_empty()).await;
    folder.write("b.yaml", &service("b", "10.0.0.9"));
    follower.until_services(&["default/a=10.0.0.1", "default/b=10.0.0.9"]).await;
    assert_eq!(follower.problems.len(), 1, "{:?}", follower.problems);
    assert_eq!(follower.problems[0].object, folder.path("a.yaml").display().to_string());
    assert!(follower.problems[0].field.starts_with("line "), "{}", follower.problems[0]);
    assert!(follower.problems[0].text.ends_with("its last valid content stays until this is fixed"));
    folder.write("a.yaml", &service("a", "10.0.0.8"));
    follower.until_services(&["default/a=10.0.0.8", "default/b=10.0.0.9"]).await;
}

/// A file without end would fill the memory, a pipe would be waited for.
#[tokio::test]
async fn files_that_are_too_large_and_pipes_are_reported_and_the_rest_goes_on() {
    let folder = Folder::new();
    folder.write("b.yaml", &service("b", "10.0.0.2"));
    let sparse = fs::File::create(folder.path("a.yaml")).expect("a file");
    sparse.set_len(3 << 30).expect("a sparse file");
    nix::unistd::mkfifo(&folder.path("c.yaml"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let mut follower = Follower::start(folder.0.path());
    follower.until_services(&["default/b=10.0.0.2"]).await;
    follower.until("both are reported", |f| f.problems.len() == 2).await;
    for (file, reason) in
        [("a.yaml", "it has 3072 MiB, more than 256"), ("c.yaml", "it is not a regular file")]
    {
        let object = folder.path(file).display().to_string();
        let found =
            follower.problems.iter().any(|problem| problem.object == object && problem.text.contains(reason));
        assert!(found, "{file}: {:?}", follower.problems);
    }
    folder.write("b.yaml", &service("b", "10.0.0.3"));
    follower.until_services(&["default/b=10.0.0.3"]).await;
}

/// Their lines were counted from the start of the file for each of them: 20,000 took 21 seconds.
#[tokio::test]
async fn many_json_documents_on_lines_of_their_own_are_read() {
    let folder = Folder::new();
    let text: String = (0..20_000)
        .map(|number| format!("{{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{{\"name\":\"s{number}\"}},\n\"spec\":{{\"clusterIP\":\"10.0.0.1\"}}}}\n"))
        .collect();
    folder.write("many.json", &text);
    let mut follower = Follower::start(folder.0.path());
    follower.until("all are there", |f| f.services.len() == 20_000).await;
}

#[tokio::test]
async fn of_two_files_with_the_same_object_the_first_counts() {
    let folder = Folder::new();
    folder.write("2.yaml", &service("web", "10.0.0.2"));
    folder.write("1.yaml", &service("web", "10.0.0.1"));
    let mut follower = Follower::start(folder.0.path());
    follower.until_services(&["default/web=10.0.0.1"]).await;
    follower.until("the duplicate is reported", |f| !f.problems.is_empty()).await;
    assert_eq!(follower.problems[0].object, folder.path("2.yaml").display().to_string());
    assert_eq!(follower.problems[0].field, "Service default/web");
    fs::remove_file(folder.path("1.yaml")).expect("it can be removed");
    follower.until_services(&["default/web=10.0.0.2"]).await;
}

#[tokio::test]
async fn a_folder_that_goes_away_keeps_its_objects_and_is_followed_when_it_is_back() {
    let outer = Folder::new();
    let inner = outer.path("manifests");
    let mut follower = Follower::start(&inner);
    follower.until("the missing folder is reported", |f| matches!(f.health, Some(Health::Failing(_)))).await;
    assert!(follower.lists_done.is_empty(), "nothing is known yet");
    fs::create_dir(&inner).expect("a folder can be made");
    fs::write(inner.join("web.yaml"), service("web", "10.0.0.1")).expect("a file can be written");
    follower.until_services(&["default/web=10.0.0.1"]).await;
    follower.until("it follows", |f| f.health == Some(Health::Following)).await;
    fs::remove_dir_all(&inner).expect("it can be removed");
    follower.until("the loss is reported", |f| matches!(f.health, Some(Health::Failing(_)))).await;
    fs::create_dir(&inner).expect("a folder can be made");
    fs::write(inner.join("web.yaml"), service("web", "10.0.0.2")).expect("a file can be written");
    follower.until_services(&["default/web=10.0.0.2"]).await;
}

#[tokio::test]
async fn bad_parts_of_objects_are_reported_once() {
    let folder = Folder::new();
    folder.write("a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.0.0.1, externalIPs: [nonsense]}\n");
    let mut follower = Follower::start(folder.0.path());
    follower.until("it follows", |f| f.health.is_some()).await;
    folder.write("b.yaml", &service("b", "10.0.0.2"));
    follower.until_services(&["default/a=10.0.0.1", "default/b=10.0.0.2"]).await;
    let texts: Vec<String> = follower.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        ["Service default/a: spec.externalIPs[0]: \"nonsense\" is not an IP address; left out"]
    );
}

#[tokio::test]
async fn the_source_ends_when_nobody_listens() {
    let folder = Folder::new();
    folder.write("web.yaml", &service("web", "10.0.0.1"));
    let mut follower = Follower::start(folder.0.path());
    follower.until("it follows", |f| f.health.is_some()).await;
    drop(follower.updates);
    folder.write("web.yaml", &service("web", "10.0.0.2"));
    tokio::time::timeout(DEADLINE, follower.task).await.expect("it ends").expect("it does not panic");
}
