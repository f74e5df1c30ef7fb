//! Asks the running process, over its introspection server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;

use crate::config::Config;
use crate::host::Instance;
use crate::introspection::api::ApiError;

/// The longest time for a connection and for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The largest answer that is read.
const LARGEST: u64 = 64 << 20;

/// The running process on this node.
pub(super) struct Client {
    address: SocketAddr,
}

/// What it answers.
pub(super) enum Reply<T> {
    /// What was asked for.
    Answer(T),
    /// It does not have that.
    Refused(ApiError),
}

impl Client {
    /// Connects to the process that listens where the configuration says; fails with what to do if there is none.
    pub(super) fn connect(config: &Config) -> anyhow::Result<Client> {
        let Some(address) = config.servers.page else {
            bail!("--page-bind-address is empty, so the running process answers no questions");
        };
        let client = Client { address };
        TcpStream::connect_timeout(&address, TIMEOUT).with_context(|| client.absent())?;
        Ok(client)
    }

    /// What to do if nothing answers.
    fn absent(&self) -> String {
        let address = self.address;
        match Instance::other() {
            Some(process) => format!(
                "Portwarden runs on this node (process {process}), but does not answer at {address}: give --page-bind-address, or the --config \
                 of that process"
            ),
            None => format!(
                "no Portwarden answers at {address}: start it, give --page-bind-address if it listens elsewhere, or run this on its node"
            ),
        }
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks for a path.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<Reply<T>> {
        let (status, body) = self.text(path)?;
        if status == 200 {
            let answer = serde_json::from_str(&body).with_context(|| {
                format!("cannot read the answer of {}; is it another version?", self.address)
            })?;
            return Ok(Reply::Answer(answer));
        }
        let error = serde_json::from_str(&body).unwrap_or_else(|_| ApiError {
            error: format!("status {status}: {body}"),
            did_you_mean: Vec::new(),
        });
        Ok(Reply::Refused(error))
    }

    /// Asks for a path, and returns the status and the body.
    pub(super) fn text(&self, path: &str) -> anyhow::Result<(u16, String)> {
        get(self.address, path).with_context(|| self.absent())
    }
}

/// One request over HTTP/1.1, without compression.
pub(super) fn get(address: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // Version 1.0: the body ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(LARGEST).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    let status =
        head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("the answer has no status")?;
    Ok((status, body.to_owned()))
}

/// Text as part of a query.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'/' | b':') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
