//! What clients and servers say to each other: one line each.
//!
//! The number ties an answer to its question, so that a late answer is not taken for the next one.

use std::net::SocketAddr;

use anyhow::{Context, Result};

/// What a client sends.
pub(super) fn question(number: u32) -> String {
    format!("{number}\n")
}

/// What a server sends back for a question (without its line end).
pub(super) fn answer(question: &str, host: &str, endpoint: SocketAddr, source: SocketAddr) -> String {
    format!("{question} {host} {endpoint} {source}\n")
}

/// A parsed answer: number, host, endpoint, source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) number: u32,
    pub(super) host: String,
    pub(super) endpoint: SocketAddr,
    pub(super) source: SocketAddr,
}

/// Reads an answer.
pub(super) fn read(line: &str) -> Result<Read> {
    let mut words = line.split_ascii_whitespace();
    let mut word = |what| words.next().with_context(|| format!("no {what} in the answer {line:?}"));
    Ok(Read {
        number: word("number")?.parse().with_context(|| format!("no number in the answer {line:?}"))?,
        host: word("host")?.to_owned(),
        endpoint: word("endpoint")?
            .parse()
            .with_context(|| format!("bad endpoint in the answer {line:?}"))?,
        source: word("source")?.parse().with_context(|| format!("bad source in the answer {line:?}"))?,
    })
}

/// Takes the first whole line out of `received`.
pub(super) fn take_line(received: &mut Vec<u8>) -> Option<String> {
    let end = received.iter().position(|byte| *byte == b'\n')?;
    let line: Vec<u8> = received.drain(..=end).collect();
    Some(String::from_utf8_lossy(&line[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_writes_a_client_reads() {
        let (endpoint, source) = ("[fd00::1]:80".parse().unwrap(), "10.0.0.1:5".parse().unwrap());
        let mut bytes = answer("7", "pod-0", endpoint, source).into_bytes();
        bytes.extend(b"rest");
        let line = take_line(&mut bytes).unwrap();
        assert_eq!(read(&line).unwrap(), Read { number: 7, host: "pod-0".into(), endpoint, source });
        assert_eq!(take_line(&mut bytes), None);
    }

    #[test]
    fn what_is_no_answer_is_quoted() {
        for line in ["", "x", "1 pod-0", "1 pod-0 nowhere 10.0.0.1:5"] {
            let error = format!("{:#}", read(line).unwrap_err());
            assert!(error.contains(&format!("{line:?}")), "{error}");
        }
    }
}
