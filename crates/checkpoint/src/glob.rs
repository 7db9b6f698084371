//! Patterns of names, as shells have them.

/// Matches a whole text: `*` stands for any characters, slashes and dots too; `?` for any one; `[abc]`, `[a-z]`, `[!abc]` for
/// one of, or none of, a set. Only the last `*` is ever gone back to, so the time is at most the product of the lengths.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p + 1, t));
            p += 1;
        } else if let Some(length) = one(&pattern[p..], text[t]) {
            p += length;
            t += 1;
        } else if let Some((after, from)) = star {
            star = Some((after, from + 1));
            (p, t) = (after, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Length of the pattern's first element when it takes this character.
fn one(pattern: &[char], c: char) -> Option<usize> {
    match *pattern.first()? {
        '?' => Some(1),
        '[' => match set(pattern) {
            Some((length, negated, members)) => {
                let mut found = false;
                let mut at = 0;
                while at < members.len() {
                    if at + 2 < members.len() && members[at + 1] == '-' {
                        found |= (members[at]..=members[at + 2]).contains(&c);
                        at += 3;
                    } else {
                        found |= members[at] == c;
                        at += 1;
                    }
                }
                (found != negated).then_some(length)
            }
            // Never closed: an ordinary character.
            None => (c == '[').then_some(1),
        },
        literal => (literal == c).then_some(1),
    }
}

/// Length, negation and members of a set in brackets; a `]` that comes first is a member.
fn set(pattern: &[char]) -> Option<(usize, bool, &[char])> {
    let negated = pattern.get(1) == Some(&'!');
    let start = if negated { 2 } else { 1 };
    let close = pattern.iter().skip(start + 1).position(|c| *c == ']')? + start + 1;
    Some((close + 1, negated, &pattern[start..close]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, text, expected) in [
            ("*Q8_0.gguf", "model-Q8_0.gguf", true),
            ("*Q8_0.gguf", "model-Q4_0.gguf", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b-", false),
            ("mo?el", "model", true),
            ("mo?el", "moel", false),
            ("[a-c]x[!0-9]", "bxz", true),
            ("[a-c]x[!0-9]", "bx5", false),
            ("[]a]", "]", true),
            ("[ab", "[ab", true),
            ("ü*", "über", true),
            ("dir/*", "dir/sub/file", true),
            ("*.layers.1.*", "model.layers.11.mlp", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
        // Would take longer than the universe with naive backtracking.
        assert!(!matches(&"*a".repeat(200), &"a".repeat(199)));
    }
}
