//! The API server that tests run against: our own, or a real one.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::{Method, Request};
use portwarden_testkit::apiserver::{ApiServer, Rights};
use portwarden_testkit::build::service_cidr;
use serde_json::{Value, json};

use super::real::RealServer;

/// A server with the users `admin`, who may do everything, `proxier`, who may do what kube-proxy may, and `nobody`; their tokens
/// are their names.
pub enum Server {
    /// The one of the testkit.
    Own { server: ApiServer, folder: tempfile::TempDir },
    /// A real one.
    Real(Box<RealServer>),
}

impl Server {
    /// The testkit's server, with what a real one has from the start.
    pub async fn own() -> Server {
        let server = ApiServer::builder()
            .tls()
            .user("admin", "admin", Rights::Everything)
            .user("proxier", "system:kube-proxy", Rights::NodeProxier)
            .user("nobody", "nobody", Rights::Nothing)
            .start()
            .expect("a server");
        server.apply(service_cidr("kubernetes", ["10.96.0.0/16", "fd00:96::/108"]));
        let server = Server::Own { server, folder: tempfile::tempdir().expect("a folder") };
        let api = json!({"metadata": {"name": "kubernetes"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}});
        server.send(Method::POST, "/api/v1/namespaces/default/services", api).await;
        server
    }

    /// A kubeconfig with the credentials in `user`, for example `token: admin`.
    pub fn kubeconfig(&self, name: &str, user: &str) -> PathBuf {
        match self {
            Server::Own { server, folder } => {
                server.kubeconfig_as(folder.path(), name, user).expect("a kubeconfig")
            }
            Server::Real(server) => server.kubeconfig(name, user),
        }
    }

    /// Sends an object with all rights; panics if it is refused.
    pub async fn send(&self, method: Method, path: &str, object: Value) -> Value {
        let patch = method == Method::PATCH;
        let content_type = if patch { "application/merge-patch+json" } else { "application/json" };
        let body = if object.is_null() { Bytes::new() } else { object.to_string().into() };
        let request = Request::builder().method(method).uri(path).header("content-type", content_type);
        let request = request.body(Vec::from(body)).expect("a request");
        let admin = admin(&self.kubeconfig("admin", "token: admin")).await;
        admin.request::<Value>(request).await.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Ends the server, as a crash would; its objects stay.
    pub fn kill(&mut self) {
        match self {
            Server::Own { server, .. } => server.stop(),
            Server::Real(server) => server.kill_server(),
        }
    }

    /// Starts the server again.
    pub async fn restart(&mut self) {
        match self {
            Server::Own { server, .. } => server.resume().expect("the address is free"),
            Server::Real(server) => server.start_server().await,
        }
    }
}

/// A client that is not the one under test. It takes no for an answer.
pub async fn admin(kubeconfig: &Path) -> kube::Client {
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig);
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig.expect("it is good"), &options).await;
    let mut config = config.expect("it is good");
    config.default_retry = false;
    kube::Client::try_from(config).expect("a client")
}
