//! A real kube-apiserver with its etcd, for as long as one test takes.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http::Request;
use kube::client::Body;

use super::certificates::Authority;
use super::server::admin;

/// How long the two programs may take to start.
const START: Duration = Duration::from_secs(120);

/// The programs to test against, if the environment names them as the ecosystem's tests do.
pub fn binaries() -> Option<(PathBuf, PathBuf)> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let assets = variable("KUBEBUILDER_ASSETS");
    let program =
        |name: &str, own: Option<PathBuf>| own.or_else(|| assets.as_ref().map(|dir| dir.join(name)));
    let server = program("kube-apiserver", variable("TEST_ASSET_KUBE_APISERVER"))?;
    let etcd = program("etcd", variable("TEST_ASSET_ETCD"))?;
    Some((server, etcd))
}

/// The running programs; dropping it ends them.
pub struct RealServer {
    pub folder: tempfile::TempDir,
    pub url: String,
    pub authority: Authority,
    etcd: Child,
    server: Option<Child>,
    command: Vec<String>,
    program: PathBuf,
}

impl RealServer {
    /// Starts both and waits until the server is ready.
    pub async fn start(server: &Path, etcd: &Path) -> RealServer {
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Authority::new("portwarden-test");
        let [etcd_port, peer_port, port] = free_ports();
        let etcd_url = format!("http://127.0.0.1:{etcd_port}");
        let etcd = Command::new(etcd)
            .args(["--data-dir", path(&folder, "etcd").as_str()])
            .args(["--listen-client-urls", &etcd_url, "--advertise-client-urls", &etcd_url])
            .args(["--listen-peer-urls", &format!("http://127.0.0.1:{peer_port}")])
            .args(["--unsafe-no-fsync"])
            .stdout(Stdio::null())
            .stderr(fs::File::create(path(&folder, "etcd.log")).expect("a file"))
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", etcd.display()));
        write_files(&folder, &authority);
        let flag = |name: &str, value: &str| format!("--{name}={value}");
        let command = vec![
            flag("etcd-servers", &etcd_url),
            flag("bind-address", "127.0.0.1"),
            flag("advertise-address", "192.0.2.10"),
            flag("endpoint-reconciler-type", "none"),
            flag("secure-port", &port.to_string()),
            flag("cert-dir", &path(&folder, "certs")),
            flag("tls-cert-file", &path(&folder, "server.crt")),
            flag("tls-private-key-file", &path(&folder, "server.key")),
            flag("client-ca-file", &path(&folder, "ca.crt")),
            flag("token-auth-file", &path(&folder, "tokens.csv")),
            flag("authorization-mode", "RBAC"),
            flag("service-cluster-ip-range", "10.96.0.0/16,fd00:96::/108"),
            flag("service-account-issuer", "https://kubernetes.default.svc"),
            flag("service-account-key-file", &path(&folder, "sa.pub")),
            flag("service-account-signing-key-file", &path(&folder, "sa.key")),
            flag("disable-admission-plugins", "ServiceAccount"),
        ];
        let url = format!("https://127.0.0.1:{port}");
        let program = server.to_owned();
        let mut running = RealServer { folder, url, authority, etcd, server: None, command, program };
        running.start_server().await;
        running
    }

    /// Ends the server, as a crash would; its etcd stays.
    pub fn kill_server(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// Starts the server again.
    pub async fn start_server(&mut self) {
        let log = fs::File::options().create(true).append(true).open(path(&self.folder, "server.log"));
        let server = Command::new(&self.program)
            .args(&self.command)
            .stdout(Stdio::null())
            .stderr(log.expect("a file"))
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", self.program.display()));
        self.server = Some(server);
        let deadline = tokio::time::Instant::now() + START;
        let client = admin(&self.kubeconfig("admin", "token: admin")).await;
        loop {
            let ready = Request::get("/readyz").body(Body::empty()).expect("a request");
            if client.send(ready).await.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            let ended = self.server.as_mut().is_none_or(|server| !matches!(server.try_wait(), Ok(None)));
            if ended || tokio::time::Instant::now() > deadline {
                let log = fs::read_to_string(path(&self.folder, "server.log")).unwrap_or_default();
                panic!("{} is not ready:\n{log}", self.program.display());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// A kubeconfig with the credentials in `user`, for example `token: admin`.
    pub fn kubeconfig(&self, name: &str, user: &str) -> PathBuf {
        let file = self.folder.path().join(format!("{name}.kubeconfig"));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters: [{{name: test, cluster: {{server: '{}', certificate-authority: ca.crt}}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: {name}}}}}]\n\
             users: [{{name: {name}, user: {{{user}}}}}]\n",
            self.url
        );
        fs::write(&file, text).expect("a file");
        file
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        self.kill_server();
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
    }
}

fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

fn write_files(folder: &tempfile::TempDir, authority: &Authority) {
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
    let server = authority.server();
    let account = rcgen::KeyPair::generate().expect("a key");
    write("ca.crt", &authority.certificate);
    write("server.crt", &server.certificate);
    write("server.key", &server.key);
    write("sa.key", &account.serialize_pem());
    write("sa.pub", &account.public_key_pem());
    write("tokens.csv", "admin,admin,1,system:masters\nproxier,system:kube-proxy,2\nnobody,nobody,3\n");
}

/// Free ports. Another process may take one first; the programs then say so.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners: Vec<_> = (0..N).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    std::array::from_fn(|index| listeners[index].local_addr().expect("it has an address").port())
}
