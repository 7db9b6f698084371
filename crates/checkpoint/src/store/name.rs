//! Names of repositories.

use std::fmt;
use std::str::FromStr;

use super::StoreError;

/// Longest part of a name, the hub's own limit.
const MAX_PART: usize = 96;

/// A repository on the hub: `OWNER/NAME`.
///
/// Both parts follow the hub's rules: letters, digits, `-`, `_` and `.`, not at the ends `-` or `.`, and no `--` or `..`. So a
/// name is always a plain path of two parts, and `OWNER--NAME` can be taken apart again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepoId {
    owner: String,
    name: String,
}

impl RepoId {
    /// The user or organisation.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The name without its owner.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `OWNER--NAME`, as directories are called.
    pub(crate) fn dashed(&self) -> String {
        format!("{}--{}", self.owner, self.name)
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

impl FromStr for RepoId {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let error = |problem| StoreError::Name { found: text.chars().take(2 * MAX_PART).collect(), problem };
        let (owner, name) = text.split_once('/').ok_or_else(|| error("it has no owner"))?;
        for part in [owner, name] {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            if part.is_empty() {
                return Err(error("a part is empty"));
            }
            if part.len() > MAX_PART {
                return Err(error("a part is longer than 96 characters"));
            }
            if part.contains('/') {
                return Err(error("it has more than two parts"));
            }
            if !part.bytes().all(allowed) {
                return Err(error("only letters, digits, '-', '_' and '.' are allowed"));
            }
            if part.starts_with(['-', '.']) || part.ends_with(['-', '.']) {
                return Err(error("no part begins or ends with '-' or '.'"));
            }
            if part.contains("--") || part.contains("..") {
                return Err(error("'--' and '..' are not allowed"));
            }
        }
        Ok(Self { owner: owner.into(), name: name.into() })
    }
}

/// True for the full name of a commit: 40 lower-case hexadecimal digits.
pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The candidates somebody who typed `asked` may have meant: one holds the other, whatever the case, or few characters differ
/// in the last part. At most five, nearest first.
pub fn near<'a>(asked: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let last = |text: &str| text.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let wanted = last(asked);
    let mut scored: Vec<(usize, &str)> = candidates
        .into_iter()
        .filter_map(|candidate| {
            let found = last(candidate);
            if !wanted.is_empty() && (found.contains(&wanted) || wanted.contains(&found)) {
                return Some((0, candidate));
            }
            let distance = edit_distance(&wanted, &found);
            (distance <= 1 + wanted.len() / 5).then_some((distance, candidate))
        })
        .collect();
    scored.sort();
    scored.into_iter().take(5).map(|(_, candidate)| candidate).collect()
}

/// Levenshtein distance in characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replace = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
