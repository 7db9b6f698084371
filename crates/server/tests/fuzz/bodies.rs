//! Bodies as they should not be.

use serde_json::{Map, Value, json};

/// Stands for text that is no JSON value of this library's, such as 1e999.
pub const RAW: &str = "@raw@";

/// A small generator of numbers (xorshift), so that a failure can be had again by its number.
pub struct Dice(u64);

impl Dice {
    pub fn of(number: u64) -> Self {
        let mut dice = Dice(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        dice.roll(2);
        dice
    }

    /// Below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides.max(1)
    }

    pub fn byte(&mut self) -> u8 {
        self.roll(256) as u8
    }
}

/// The values in a value, itself included, in the order of the text.
fn nodes<'a>(value: &'a mut Value, pick: &mut usize) -> Option<&'a mut Value> {
    if *pick == 0 {
        return Some(value);
    }
    *pick -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|child| nodes(child, pick)),
        Value::Object(map) => map.values_mut().find_map(|child| nodes(child, pick)),
        _ => None,
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

fn nested(depth: usize, object: bool) -> Value {
    (0..depth).fold(json!(1), |inner, _| if object { json!({ "a": inner }) } else { json!([inner]) })
}

/// A value that does not belong there, and what [`RAW`] in it stands for.
fn odd(dice: &mut Dice) -> (Value, &'static str) {
    let numbers =
        ["1e999", "-1e999", "18446744073709551616", "-9223372036854775809", "1e-999", "-0.0", "0.1e1", "1E400"];
    let value = match dice.roll(26) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(""),
        3 => json!("\u{0}\u{7f}\u{202e}\u{fffd}"),
        4 => json!("x".repeat(3000)),
        5 => json!([]),
        6 => json!({}),
        7 => json!(-1),
        8 => json!(0),
        9 => json!(3),
        10 => json!(1.5),
        11 => json!(u64::MAX),
        12 => json!(i64::MIN),
        13 => json!(1e308),
        14 => json!([null, [null], {}]),
        15 => json!({ "type": "text", "text": 1 }),
        16 => json!({ "type": "image_url", "image_url": { "url": "data:," } }),
        17 => json!("<bos><|turn>user\n"),
        18 => nested(dice.roll(200), true),
        19 => nested(dice.roll(200), false),
        20 => json!("auto"),
        21 => json!({ "": "" }),
        22 => json!(2_000),
        23 => json!(1_000_000),
        _ => json!(RAW),
    };
    (value, numbers[dice.roll(numbers.len())])
}

/// Cuts, repeats or adds something that means something in a grammar or a pattern.
fn edit(text: &mut String, dice: &mut Dice) {
    let signs = [
        "{1,1000000}",
        "{0,}",
        "*",
        "+",
        "?",
        "|",
        "(",
        ")",
        "[^",
        "]",
        "\"",
        "/",
        "::=",
        ":",
        "\n",
        "root",
        "start",
        "item",
        "\\x",
        "\\u{10ffff}",
        "(?=a)",
        "<eos>",
        "%ignore /./\n",
        "#",
        "^$",
        ".*",
        "ü",
        "\u{0}",
    ];
    let letters: Vec<char> = text.chars().collect();
    let at = dice.roll(letters.len() + 1);
    let end = at + dice.roll(letters.len() + 1 - at);
    let (before, piece, after) = (&letters[..at], &letters[at..end], &letters[end..]);
    let middle: String = match dice.roll(4) {
        0 => String::new(),
        1 => piece.iter().collect::<String>().repeat(1 + dice.roll(60)),
        _ => piece.iter().collect::<String>() + signs[dice.roll(signs.len())],
    };
    *text = before.iter().collect::<String>() + &middle + &after.iter().collect::<String>();
}

/// A body as it is sent, made of a valid one.
pub fn mutated(seed: &Value, other: &Value, dice: &mut Dice) -> Vec<u8> {
    let mut body = seed.clone();
    let mut raw = "1";
    match dice.roll(12) {
        // Most often one field, sometimes two, with odd values.
        0..=4 => {
            for _ in 0..1 + dice.roll(2) {
                let mut pick = dice.roll(count(&body));
                if let Some(node) = nodes(&mut body, &mut pick) {
                    (*node, raw) = odd(dice);
                }
            }
        }
        // A field is missing, has another name, or belongs to another route.
        5 => {
            let map = body.as_object_mut().expect("an object");
            let name = map.keys().nth(dice.roll(map.len())).cloned().expect("a field");
            let value = map.remove(&name).expect("it is there");
            if dice.roll(2) == 0 {
                map.insert(name.to_uppercase(), value);
            }
        }
        6 => {
            let foreign: Map<String, Value> = other.as_object().cloned().expect("an object");
            if let Some((name, value)) = foreign.into_iter().nth(dice.roll(6)) {
                body[name] = value;
            }
        }
        // A text in it has other letters.
        7 | 8 => {
            let mut pick = dice.roll(count(&body));
            if let Some(Value::String(text)) = nodes(&mut body, &mut pick) {
                (0..1 + dice.roll(4)).for_each(|_| edit(text, dice));
            }
        }
        _ => {}
    }
    let mut bytes = body.to_string().replace(&format!("\"{RAW}\""), raw).into_bytes();
    match dice.roll(16) {
        0 => bytes.truncate(dice.roll(bytes.len())),
        1 => (0..1 + dice.roll(8)).for_each(|_| {
            let at = dice.roll(bytes.len());
            bytes[at] ^= 1 << dice.roll(8);
        }),
        2 => (0..dice.roll(20)).for_each(|_| {
            let at = dice.roll(bytes.len());
            bytes.insert(at, dice.byte());
        }),
        3 => bytes = vec![b"[{"[dice.roll(2)]; dice.roll(100_000)],
        4 => bytes.extend_from_slice(b"{}"),
        5 => bytes = (0..dice.roll(300)).map(|_| dice.byte()).collect(),
        _ => {}
    }
    bytes
}
