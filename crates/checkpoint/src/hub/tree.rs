//! The listing of a repository's files: JSON in pages, the next of which a `Link` header names.

use serde_json::Value;

use crate::fields::short;
use crate::store::{Digest, MAX_PATH_BYTES, ManifestFile};

/// Most files a listing may have, over all its pages.
pub const MAX_FILES: usize = 100_000;

/// The files in one page of a listing, in its order. Directories and kinds of entries not known are passed over.
///
/// # Errors
/// Says which entry has what instead of what was expected. File names are not judged here: they become paths in
/// [`safe_path`](crate::store::safe_path).
pub fn parse_tree(json: &[u8]) -> Result<Vec<ManifestFile>, String> {
    let value: Value = serde_json::from_slice(json).map_err(|error| format!("invalid JSON: {error}"))?;
    let entries = value.as_array().ok_or_else(|| format!("is {}, expected a list of files", short(&value)))?;
    if entries.len() > MAX_FILES {
        return Err(format!("lists {} entries, more than {MAX_FILES}", entries.len()));
    }
    let mut files = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        let kind = text(entry, number, "type")?;
        if kind == "file" {
            files.push(file(entry, number)?);
        }
    }
    Ok(files)
}

fn file(entry: &Value, number: usize) -> Result<ManifestFile, String> {
    let path = text(entry, number, "path")?;
    if path.len() > MAX_PATH_BYTES {
        return Err(format!("[{number}].path is longer than {MAX_PATH_BYTES} bytes"));
    }
    let wrong = |field: &str, expected: &str, found: Option<&Value>| {
        let found = found.map_or("absent".into(), short);
        format!("[{number}].{field} of {path:?} is {found}, expected {expected}")
    };
    let size = |field: &str, value: Option<&Value>| {
        value.and_then(Value::as_u64).ok_or_else(|| wrong(field, "a number of bytes", value))
    };
    // A large file's entry describes a pointer; the file itself is under `lfs`.
    let (field, hash, size) = match entry.get("lfs").filter(|lfs| !lfs.is_null()) {
        Some(lfs) => {
            let oid = lfs.get("oid");
            let hex = oid.and_then(Value::as_str).map(|oid| oid.strip_prefix("sha256:").unwrap_or(oid));
            (("lfs.oid", oid), hex.map(|hex| format!("sha256:{hex}")), size("lfs.size", lfs.get("size"))?)
        }
        None => {
            let oid = entry.get("oid");
            (
                ("oid", oid),
                oid.and_then(Value::as_str).map(|hex| format!("git:{hex}")),
                size("size", entry.get("size"))?,
            )
        }
    };
    let hash: Option<Digest> = hash.and_then(|hash| hash.parse().ok());
    let hash = hash.ok_or_else(|| wrong(field.0, "a hash in lower-case hexadecimal digits", field.1))?;
    Ok(ManifestFile { path: path.into(), size, hash })
}

fn text<'a>(entry: &'a Value, number: usize, field: &str) -> Result<&'a str, String> {
    let value = entry.get(field);
    value.and_then(Value::as_str).ok_or_else(|| {
        let found = value.map_or("absent".into(), short);
        format!("[{number}].{field} is {found}, expected a string")
    })
}

/// The address that a `Link` header gives for `rel="next"` (RFC 8288), if it does.
pub fn next_link(header: &str) -> Option<&str> {
    let mut rest = header;
    while let Some(open) = rest.find('<') {
        let (target, after) = rest[open + 1..].split_once('>')?;
        let (mut parameters, next) = split_unquoted(after, ',');
        while !parameters.is_empty() {
            let (parameter, others) = split_unquoted(parameters, ';');
            if is_next(parameter) {
                return Some(target.trim());
            }
            parameters = others;
        }
        rest = next;
    }
    None
}

/// True for `rel=next`, alone or among other relations.
fn is_next(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else { return false };
    let mut relations = value.trim().trim_matches('"').split_ascii_whitespace();
    name.trim().eq_ignore_ascii_case("rel") && relations.any(|relation| relation.eq_ignore_ascii_case("next"))
}

/// What is before and after the first separator outside of quotes.
fn split_unquoted(text: &str, separator: char) -> (&str, &str) {
    let mut quoted = false;
    for (at, c) in text.char_indices() {
        quoted ^= c == '"';
        if c == separator && !quoted {
            return (&text[..at], &text[at + separator.len_utf8()..]);
        }
    }
    (text, "")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn links_to_the_next_page() {
        for (header, next) in [
            ("<https://h/a?b=1>; rel=\"next\"", Some("https://h/a?b=1")),
            ("<a>; rel=prev, <b>; rel=next", Some("b")),
            ("<a>; title=\"x, <c>; rel=next\"; rel=prev, <b>;REL=\"last Next\"", Some("b")),
            ("<a>", None),
            ("<a>; rel=\"nextish\"", None),
            ("<a; rel=next", None),
            ("a; rel=next", None),
            ("", None),
            ("<>; rel=next", Some("")),
        ] {
            assert_eq!(next_link(header), next, "{header}");
        }
    }

    #[test]
    fn listings_name_what_is_wrong() {
        let entry = |change: &dyn Fn(&mut Value)| {
            let mut entry = json!({"type": "file", "path": "f", "size": 3, "oid": "0".repeat(40),
                "lfs": {"oid": "a".repeat(64), "size": 5}});
            change(&mut entry);
            parse_tree(json!([{"type": "directory"}, {"type": "submodule"}, entry]).to_string().as_bytes())
        };
        let file = &entry(&|_| {}).expect("good")[0];
        assert_eq!((file.size, file.hash.to_string()), (5, format!("sha256:{}", "a".repeat(64))));
        let file = &entry(&|e| e["lfs"] = Value::Null).expect("good")[0];
        assert_eq!((file.size, file.hash.to_string()), (3, format!("git:{}", "0".repeat(40))));
        entry(&|e| e["lfs"]["oid"] = json!(format!("sha256:{}", "a".repeat(64)))).expect("as the pointer has it");
        for (change, words) in [
            (&(|e: &mut Value| e["path"] = json!(7)) as &dyn Fn(&mut Value), ["[2].path", "7"]),
            (&|e: &mut Value| e["lfs"]["size"] = json!(-1), ["lfs.size", "-1"]),
            (&|e: &mut Value| e["lfs"]["size"] = json!(1.5), ["lfs.size", "1.5"]),
            (&|e: &mut Value| e["lfs"] = json!("x"), ["lfs", "absent"]),
            (&|e: &mut Value| e["lfs"]["oid"] = json!("a".repeat(63)), ["lfs.oid", "aaa"]),
            (&|e: &mut Value| e["lfs"]["oid"] = json!("A".repeat(64)), ["lfs.oid", "AAA"]),
            (&|e: &mut Value| (e["lfs"], e["oid"]) = (Value::Null, json!("x")), ["oid", "x"]),
            (&|e: &mut Value| e["path"] = json!("p".repeat(1025)), ["[2].path", "1024"]),
        ] {
            let message = entry(change).expect_err("bad");
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        /// A listing with bytes changed is a listing or an error.
        #[test]
        fn any_listing_is_parsed_or_refused(at in any::<usize>(), to in any::<u8>(), cut in any::<usize>(), what in 0..3) {
            let text = json!([
                {"type": "directory", "oid": "0".repeat(40), "size": 0, "path": "d"},
                {"type": "file", "oid": "0".repeat(40), "size": 12, "path": "d/f", "lfs": {"oid": "1".repeat(64), "size": 5}},
            ]);
            let mut bytes = text.to_string().into_bytes();
            let at = at % bytes.len();
            match what {
                0 => bytes[at] = to,
                1 => bytes.insert(at, to),
                _ => bytes.truncate(cut % bytes.len()),
            }
            if let Ok(files) = parse_tree(&bytes) {
                prop_assert!(files.len() <= 2);
            }
        }

        /// What is found in a Link header is in it, between angle brackets.
        #[test]
        fn any_link_header_is_parsed(header in "[<>;,=\" a-c]{0,8}(rel=\"?next)?[<>;,=\" a-c]{0,12}(; rel=next)?") {
            if let Some(next) = next_link(&header) {
                prop_assert!(header.contains(&format!("{next}>")) || header.contains(&format!("{next} ")), "{header} {next}");
                prop_assert!(header.contains("next") && !next.contains('>'));
            }
        }
    }
}
