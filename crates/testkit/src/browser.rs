//! A real browser for tests of pages: Debian's Chromium without a window, driven by its own driver.
//!
//! The driver speaks the W3C WebDriver protocol, which is JSON over HTTP; this file has the few commands that tests need.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::netns::{Namespace, Process};
use crate::wait;

/// The driver's port. Every browser has a network namespace to itself.
const PORT: u16 = 9515;

/// Long enough for a loaded machine; nothing waits for it when all is well.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Keys that have no character, as the protocol writes them.
pub mod keys {
    /// Moves the focus to the next element.
    pub const TAB: &str = "\u{e004}";
    /// Follows a link.
    pub const ENTER: &str = "\u{e007}";
    /// Leaves an input.
    pub const ESCAPE: &str = "\u{e00c}";
    /// To the right.
    pub const RIGHT: &str = "\u{e014}";
}

/// A browser in a network namespace. Dropping it ends it.
#[derive(Debug)]
pub struct Browser<'a> {
    namespace: &'a Namespace,
    session: String,
    driver: Process,
    /// For profiles and other files of the browser.
    _folder: tempfile::TempDir,
}

impl<'a> Browser<'a> {
    /// Starts a browser whose window has this size.
    pub fn start(namespace: &'a Namespace, width: u32, height: u32) -> Result<Browser<'a>> {
        let folder = tempfile::tempdir()?;
        let driver = namespace
            .command("chromedriver")
            .env("TMPDIR", folder.path())
            .args([format!("--port={PORT}"), "--silent".to_owned()])
            .spawn()
            .context("install the Debian packages chromium and chromium-driver, or run scripts/setup test")?;
        let mut browser = Browser { namespace, session: String::new(), driver, _folder: folder };
        wait::until(TIMEOUT, "the driver of the browser", || {
            let answers = browser.request("GET", "/status", None).is_ok();
            (answers || !browser.driver.is_running()).then_some(())
        })?;
        let arguments = [
            "--headless=new".to_owned(),
            // Tests run as root in namespaces, where Chromium cannot make a sandbox.
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--hide-scrollbars".to_owned(),
            format!("--window-size={width},{height}"),
        ];
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = browser.request("POST", "/session", Some(&capabilities))?;
        let id = session["sessionId"].as_str().context("the driver names no session")?;
        browser.session = id.to_owned();
        Ok(browser)
    }

    /// Opens an address and waits until the page is loaded.
    pub fn open(&self, url: &str) -> Result<()> {
        self.command("POST", "/url", &json!({ "url": url })).map(drop)
    }

    /// Runs a script in the page; `return` gives its result.
    pub fn script(&self, script: &str) -> Result<Value> {
        self.command("POST", "/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression is true in the page.
    pub fn wait_for(&self, expression: &str) -> Result<()> {
        let script = format!("return Boolean({expression})");
        let is_true = || self.script(&script).is_ok_and(|value| value == true).then_some(());
        wait::until(TIMEOUT, expression, is_true).with_context(|| {
            let text = self.script("return document.body.innerText").unwrap_or_default();
            format!("the page shows:\n{}", text.as_str().unwrap_or_default())
        })
    }

    /// Types into whatever has the focus.
    pub fn press(&self, text: &str) -> Result<()> {
        let key = |kind: &str, key: char| json!({"type": kind, "value": key});
        let actions: Vec<Value> = text.chars().flat_map(|c| [key("keyDown", c), key("keyUp", c)]).collect();
        let body = json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]});
        self.command("POST", "/actions", &body).map(drop)
    }

    /// Clicks the first element that matches a CSS selector.
    pub fn click(&self, selector: &str) -> Result<()> {
        let wanted = json!({"using": "css selector", "value": selector});
        let found = self.command("POST", "/element", &wanted)?;
        let id = found.as_object().and_then(|object| object.values().next()?.as_str());
        let path = format!("/element/{}/click", id.context("no element")?);
        self.command("POST", &path, &json!({})).map(drop)
    }

    /// Sets what `prefers-color-scheme` says: `light` or `dark`.
    pub fn colour_scheme(&self, scheme: &str) -> Result<()> {
        let parameters = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        let body = json!({"cmd": "Emulation.setEmulatedMedia", "params": parameters});
        self.command("POST", "/goog/cdp/execute", &body).map(drop)
    }

    /// What the window shows, as PNG.
    pub fn screenshot(&self) -> Result<Vec<u8>> {
        let image = self.request("GET", &format!("/session/{}/screenshot", self.session), None)?;
        Ok(BASE64.decode(image.as_str().context("no image")?.as_bytes())?)
    }

    /// Errors in the browser's console since the last call: scripts that failed, what the content security policy blocked.
    pub fn errors(&self) -> Result<Vec<String>> {
        let entries = self.command("POST", "/se/log", &json!({"type": "browser"}))?;
        let entries = entries.as_array().context("no log")?;
        let severe = entries.iter().filter(|entry| entry["level"] == "SEVERE");
        Ok(severe.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect())
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        self.request(method, &format!("/session/{}{path}", self.session), Some(body))
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        );
        let answer = self.namespace.run(move || exchange(&request))?;
        let (head, body) = answer.split_once("\r\n\r\n").context("the driver's answer has no head")?;
        let mut value: Value =
            serde_json::from_str(body).with_context(|| format!("the driver says {body}"))?;
        if !head.starts_with("HTTP/1.1 200") {
            bail!("{method} {path}: {}", value["value"]["message"].as_str().unwrap_or(body));
        }
        Ok(value["value"].take())
    }
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        // Before the driver is killed: only it can end the browser.
        let _ = self.request("DELETE", &format!("/session/{}", self.session), None);
    }
}

/// Sends a request and reads as much as the answer's head announces; the driver keeps connections open.
fn exchange(request: &str) -> Result<String> {
    let mut stream = TcpStream::connect(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    while !is_complete(&answer) {
        match stream.read(&mut buffer)? {
            0 => break,
            count => answer.extend_from_slice(buffer.get(..count).unwrap_or_default()),
        }
    }
    Ok(String::from_utf8(answer)?)
}

fn is_complete(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(answer.get(..end).unwrap_or_default()).to_lowercase();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    length.is_some_and(|length| answer.len() >= end + 4 + length)
}
