//! Just enough of URLs: absolute `http` and `https` ones, and what a `Location` or `Link` header means relative to them.

use std::fmt;

/// An absolute URL. [`Display`](fmt::Display) leaves the query out: on content networks it holds a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    https: bool,
    /// Host and perhaps port, in lower case; no default port.
    authority: String,
    /// Begins with a slash.
    path: String,
    /// Without the question mark.
    query: Option<String>,
}

impl Url {
    /// Parses an absolute URL. The fragment is dropped; user names and passwords are refused.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        // A URL is ASCII; what else servers send must have been percent-encoded by them.
        if text.len() > 16 << 10 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("it holds spaces, control or non-ASCII characters, or is very long");
        }
        let (scheme, rest) = text.split_once("://").ok_or("it has no scheme")?;
        let https = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err("its scheme is neither http nor https"),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let mut authority = authority.to_ascii_lowercase();
        if authority.contains('@') {
            return Err("it holds a user name");
        }
        if let Some(host) = authority.strip_suffix(if https { ":443" } else { ":80" }) {
            authority = host.into();
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':' | b'[' | b']');
        if authority.is_empty() || authority.starts_with(':') || !authority.bytes().all(plain) {
            return Err("it has no valid host");
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query.to_string())),
            None => (rest, None),
        };
        let path = if path.is_empty() { "/" } else { path }.to_string();
        Ok(Self { https, authority, path, query })
    }

    /// What a reference found in an answer from this URL stands for (RFC 3986, without dot segments).
    pub(crate) fn join(&self, reference: &str) -> Result<Self, &'static str> {
        let scheme = if self.https { "https" } else { "http" };
        let before_path = reference.split(['/', '?', '#']).next().unwrap_or_default();
        if before_path.contains(':') {
            return Self::parse(reference);
        }
        let base = format!("{scheme}://{}", self.authority);
        let directory = self.path.rsplit_once('/').map_or("", |(directory, _)| directory);
        match reference {
            _ if reference.starts_with("//") => Self::parse(&format!("{scheme}:{reference}")),
            _ if reference.starts_with('/') => Self::parse(&format!("{base}{reference}")),
            _ if reference.starts_with('?') => Self::parse(&format!("{base}{}{reference}", self.path)),
            _ => Self::parse(&format!("{base}{directory}/{reference}")),
        }
    }

    /// True when both are of one scheme, host and port.
    pub(crate) fn same_origin(&self, other: &Self) -> bool {
        (self.https, &self.authority) == (other.https, &other.authority)
    }

    /// True for `https`.
    pub(crate) fn is_https(&self) -> bool {
        self.https
    }

    /// Scheme and authority.
    pub(crate) fn origin(&self) -> String {
        format!("{}://{}", if self.https { "https" } else { "http" }, self.authority)
    }

    /// The path with slashes at its end removed.
    pub(crate) fn base_path(&self) -> &str {
        self.path.trim_end_matches('/')
    }

    /// True when there is a query.
    pub(crate) fn has_query(&self) -> bool {
        self.query.is_some()
    }

    /// The whole of it, for the wire.
    pub(crate) fn whole(&self) -> String {
        match &self.query {
            Some(query) => format!("{self}?{query}"),
            None => self.to_string(),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.path)
    }
}

/// Text as one segment of a path: all but letters, digits and `-._~` percent-encoded, slashes too.
pub(crate) fn segment(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// A path with slashes, its segments encoded.
pub(crate) fn segments(path: &str) -> String {
    path.split('/').map(segment).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect(text)
    }

    #[test]
    fn parsed_and_printed() {
        assert_eq!(url("HTTPS://Host.Example:443/a/B?x=%20#frag").whole(), "https://host.example/a/B?x=%20");
        assert_eq!(url("http://h:8080").whole(), "http://h:8080/");
        assert_eq!(url("http://h?q").whole(), "http://h/?q");
        assert_eq!(url("https://cdn/f?Signature=secret").to_string(), "https://cdn/f");
        for bad in [
            "",
            "h/p",
            "ftp://h/",
            "https://",
            "https:///p",
            "https://u:p@h/",
            "https://h/a b",
            "https://h/é",
            "http://:80/",
        ] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn joined() {
        let base = url("https://hub:8443/o/n/resolve/c/f?download=1");
        for (reference, whole) in [
            ("https://cdn.example/x?y=z", "https://cdn.example/x?y=z"),
            ("//cdn.example/x", "https://cdn.example/x"),
            ("/api/x?cursor=a:b", "https://hub:8443/api/x?cursor=a:b"),
            ("g", "https://hub:8443/o/n/resolve/c/g"),
            ("?page=2", "https://hub:8443/o/n/resolve/c/f?page=2"),
        ] {
            assert_eq!(base.join(reference).expect(reference).whole(), whole);
        }
        assert!(base.join("javascript:alert(1)").is_err() && base.join("file:///etc/passwd").is_err());
    }

    #[test]
    fn origins() {
        let hub = url("https://hub.example/a");
        assert!(hub.same_origin(&url("https://hub.example:443/b")));
        for other in [
            "http://hub.example/a",
            "https://hub.example:444/a",
            "https://hub.example.evil/a",
            "https://sub.hub.example/",
        ] {
            assert!(!hub.same_origin(&url(other)), "{other}");
        }
    }

    #[test]
    fn encoded() {
        assert_eq!(segment("refs/pr/1"), "refs%2Fpr%2F1");
        assert_eq!(segments("sub dir/ü?#%.json"), "sub%20dir/%C3%BC%3F%23%25.json");
    }
}
