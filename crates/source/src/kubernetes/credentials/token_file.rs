//! A bearer token in a file that the kubelet rotates.

use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use http::HeaderValue;
use tokio::time::Instant;

/// How long a token is used before the file is read again; a rotated token stays valid far longer.
const FRESH: Duration = Duration::from_secs(60);

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token in {path}")]
    Read {
        /// The token file's path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file contains no token.
    #[error("{path} contains no token: it is empty or has characters that no token has")]
    Content {
        /// The token file's path.
        path: PathBuf,
    },
}

/// Reads and caches a token.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    last: Mutex<Option<(HeaderValue, Instant)>>,
}

impl TokenFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        TokenFile { path, last: Mutex::new(None) }
    }

    /// The `Authorization` header. If the file can no longer be read, the last token stays in use.
    pub(crate) fn header(&self) -> Result<HeaderValue, TokenError> {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        if let Some((header, read)) = &*last
            && now.saturating_duration_since(*read) < FRESH
        {
            return Ok(header.clone());
        }
        match (self.read(), &mut *last) {
            (Ok(header), last) => {
                *last = Some((header.clone(), now));
                Ok(header)
            }
            (Err(_), Some((header, read))) => {
                *read = now;
                Ok(header.clone())
            }
            (Err(error), None) => Err(error),
        }
    }

    fn read(&self) -> Result<HeaderValue, TokenError> {
        let text = std::fs::read_to_string(&self.path)
            .map_err(|source| TokenError::Read { path: self.path.clone(), source })?;
        let token = text.trim();
        let header = HeaderValue::from_str(&format!("Bearer {token}")).ok().filter(|_| !token.is_empty());
        let mut header = header.ok_or_else(|| TokenError::Content { path: self.path.clone() })?;
        header.set_sensitive(true);
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rotated_token_is_read_again_and_a_lost_one_stays_in_use() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let file = TokenFile::new(path.clone());
        assert!(matches!(file.header(), Err(TokenError::Read { .. })));
        std::fs::write(&path, " \n").expect("a file");
        assert!(matches!(file.header(), Err(TokenError::Content { .. })));
        std::fs::write(&path, "one\n").expect("a file");
        assert_eq!(file.header().expect("a token"), "Bearer one");
        std::fs::write(&path, "two").expect("a file");
        assert_eq!(file.header().expect("a token"), "Bearer one", "still fresh");
        tokio::time::advance(FRESH).await;
        assert_eq!(file.header().expect("a token"), "Bearer two");
        std::fs::remove_file(&path).expect("it is there");
        tokio::time::advance(FRESH).await;
        assert_eq!(file.header().expect("a token"), "Bearer two");
    }
}
