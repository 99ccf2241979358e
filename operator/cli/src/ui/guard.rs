//! Access control of the page: the path must begin with the token, and the Host header must name
//! this machine.
//!
//! Any user of the machine can connect to a port of 127.0.0.1, and any web site can point its own
//! name at that address (DNS rebinding). The random token and the Host check prevent both.

use std::io;

use hyper::StatusCode;

use crate::random;

/// Bytes of the token: 128 bits cannot be guessed.
const TOKEN_BYTES: usize = 16;

#[derive(Debug)]
pub(crate) struct Guard {
    token: String,
    port: u16,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The Host header is missing, repeated or names another machine.
    Host,
    /// The path does not begin with the token.
    Token,
}

impl Refusal {
    pub(super) const fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Token => StatusCode::FORBIDDEN,
        }
    }

    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Host => {
                "This page is served only as 127.0.0.1 or localhost: use that in the address."
            }
            Self::Token => {
                "The address lacks its secret. Open the address that `kubectl roundhouse ui` printed."
            }
        }
    }
}

impl Guard {
    /// A guard with a new random token.
    ///
    /// # Errors
    /// The kernel does not provide random bytes.
    pub(crate) fn new(port: u16) -> io::Result<Self> {
        let token = random::hex::<TOKEN_BYTES>()?;
        Ok(Self { token, port })
    }

    /// Address of the page, with `place` after the token: a path or a fragment.
    pub(crate) fn url(&self, place: &str) -> String {
        let Self { token, port } = self;
        format!("http://127.0.0.1:{port}/{token}/{place}")
    }

    /// The rest of the path after the token.
    pub(super) fn admit<'a>(&self, hosts: &[&[u8]], path: &'a str) -> Result<&'a str, Refusal> {
        let own = ["127.0.0.1", "localhost"].map(|name| format!("{name}:{}", self.port));
        let is_own = |host: &[u8]| own.iter().any(|own| own.as_bytes() == host);
        if hosts.len() != 1 || !is_own(hosts[0]) {
            return Err(Refusal::Host);
        }
        let path = path.strip_prefix('/').unwrap_or(path);
        let (token, rest) = match path.find('/') {
            Some(end) => path.split_at(end),
            None => (path, ""),
        };
        if self.is_token(token) {
            Ok(rest)
        } else {
            Err(Refusal::Token)
        }
    }

    /// Compares in constant time for tokens of the right length, so timing reveals nothing.
    fn is_token(&self, token: &str) -> bool {
        let pairs = self.token.bytes().zip(token.bytes());
        let difference = pairs.fold(0, |sum, (own, theirs)| sum | (own ^ theirs));
        token.len() == self.token.len() && difference == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_admits_only_own_host_and_token() {
        let guard = Guard::new(8_001).unwrap();
        let token = guard.token.clone();
        assert_eq!(token.len(), 2 * TOKEN_BYTES);
        let own: &[&[u8]] = &[b"127.0.0.1:8001"];
        let path = format!("/{token}/api/jobs");
        assert_eq!(guard.admit(own, &path), Ok("/api/jobs"));
        assert_eq!(guard.admit(&[b"localhost:8001"], &path), Ok("/api/jobs"));
        assert_eq!(guard.admit(own, &format!("/{token}")), Ok(""));
        let others: [&[&[u8]]; 6] = [
            &[],
            &[b"127.0.0.1"],
            &[b"127.0.0.1:8002"],
            &[b"evil.example:8001"],
            &[b"127.0.0.1:8001", b"evil.example"],
            &[b"127.0.0.1:8001.evil.example"],
        ];
        for hosts in others {
            assert_eq!(guard.admit(hosts, &path), Err(Refusal::Host), "{hosts:?}");
        }
        let short = &token[1..];
        for path in [
            "/".to_owned(),
            String::new(),
            "/api/jobs".to_owned(),
            format!("/{short}/api/jobs"),
            format!("/{token}0/api/jobs"),
            format!("/x{short}/api/jobs"),
            format!("//{token}/api/jobs"),
        ] {
            assert_eq!(guard.admit(own, &path), Err(Refusal::Token), "{path}");
        }
    }

    #[test]
    fn each_server_has_its_own_token() {
        let (one, other) = (Guard::new(1).unwrap(), Guard::new(1).unwrap());
        assert_ne!(one.token, other.token);
        assert!(one.url("#/ml/digits").ends_with("/#/ml/digits"));
    }
}
