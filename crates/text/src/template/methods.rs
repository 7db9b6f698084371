//! Python methods that templates call on strings, beyond those of `minijinja-contrib`.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// The engine asks here for every method it does not know.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if value.kind() == ValueKind::String
        && let Some(text) = value.as_str()
        && let Some(result) = string_method(text, method, args)
    {
        return result;
    }
    unknown_method_callback(state, value, method, args)
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "removeprefix" => from_args(args).map(|(p,): (&str,)| text.strip_prefix(p).unwrap_or(text).into()),
        "removesuffix" => from_args(args).map(|(p,): (&str,)| text.strip_suffix(p).unwrap_or(text).into()),
        "partition" => from_args(args).and_then(|(sep,): (&str,)| partition(text, sep, false)),
        "rpartition" => from_args(args).and_then(|(sep,): (&str,)| partition(text, sep, true)),
        "rsplit" => from_args(args).and_then(|(sep, max)| rsplit(text, sep, max)),
        "index" => from_args(args).and_then(|(what,): (&str,)| match text.find(what) {
            Some(at) => Ok(Value::from(text[..at].chars().count())),
            None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
        }),
        "casefold" => from_args(args).map(|()| text.to_lowercase().into()),
        "swapcase" => from_args(args).map(|()| {
            let swapped: String = text
                .chars()
                .flat_map(|c| {
                    let other: Vec<char> =
                        if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() };
                    other
                })
                .collect();
            swapped.into()
        }),
        "ljust" | "rjust" | "center" | "zfill" => pad(text, method, args),
        _ => return None,
    })
}

fn partition(text: &str, sep: &str, last: bool) -> Result<Value, Error> {
    if sep.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    let cut = if last { text.rsplit_once(sep) } else { text.split_once(sep) };
    let parts = match cut {
        Some((head, tail)) => [head, sep, tail],
        None if last => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Tuple::from(parts.map(Value::from)).into())
}

fn rsplit(text: &str, sep: Option<&str>, max: Option<i64>) -> Result<Value, Error> {
    let max = max.and_then(|m| usize::try_from(m).ok()).unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = Vec::new();
    match sep {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(sep) => parts.extend(text.rsplitn(max.saturating_add(1), sep)),
        None => {
            let mut rest = text.trim_end();
            while !rest.is_empty() {
                match rest.rfind(char::is_whitespace) {
                    Some(at) if parts.len() < max => {
                        let after = rest[at..].chars().next().map_or(at, |c| at + c.len_utf8());
                        parts.push(&rest[after..]);
                        rest = rest[..at].trim_end();
                    }
                    _ => {
                        parts.push(rest);
                        break;
                    }
                }
            }
        }
    }
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

fn pad(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<char>) = from_args(args)?;
    let width = usize::try_from(width).unwrap_or(0);
    if width > 10_000 {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("{method}: a width of {width} is more than any prompt needs"),
        ));
    }
    let missing = width.saturating_sub(text.chars().count());
    let fill = fill.unwrap_or(if method == "zfill" { '0' } else { ' ' });
    let run = |n: usize| fill.to_string().repeat(n);
    Ok(Value::from(match method {
        "ljust" => format!("{text}{}", run(missing)),
        "rjust" => format!("{}{text}", run(missing)),
        "center" => {
            // Python puts the odd space on the left when the width is odd.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", run(left), run(missing - left))
        }
        _ => {
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            let sign = &text[..text.len() - digits.len()];
            format!("{sign}{}{digits}", run(missing))
        }
    }))
}
