//! A second opinion on JSON: a small validator of the schemas that the tests use, and what a broken-off text may be.

use serde_json::Value;

/// Whether text that was broken off could have become JSON: nothing in it is wrong, it only ends too early.
pub fn may_become_json(text: &str) -> bool {
    match serde_json::from_str::<Value>(text) {
        Ok(_) => true,
        // A character or an escape that was cut is at the end, too.
        Err(e) => e.is_eof(),
    }
}

/// What is wrong with a value by a schema; `None` if nothing is. A keyword it does not know is a fault of the test.
pub fn fault(schema: &Value, value: &Value) -> Option<String> {
    check(schema, schema, value).err()
}

fn check(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("{why}: {value} by {schema}"));
    let Value::Object(keywords) = schema else {
        return if *schema == Value::Bool(false) { wrong("nothing allowed") } else { Ok(()) };
    };
    let length = |value: &Value| value.as_str().map(|s| s.chars().count() as f64);
    let count = |value: &Value| value.as_array().map(|a| a.len() as f64);
    for (keyword, want) in keywords {
        let at_most = |found: Option<f64>| found.is_none_or(|n| n <= want.as_f64().expect("a number"));
        let at_least = |found: Option<f64>| found.is_none_or(|n| n >= want.as_f64().expect("a number"));
        let fits =
            match keyword.as_str() {
                "$defs" => true,
                "$ref" => {
                    let path = want.as_str().expect("a reference").trim_start_matches('#');
                    return check(root, root.pointer(path).expect("resolved"), value);
                }
                "type" => match want {
                    Value::Array(all) => all.iter().any(|one| is_type(one, value)),
                    one => is_type(one, value),
                },
                "enum" => want.as_array().expect("a list").contains(value),
                "const" => want == value,
                "anyOf" => want.as_array().expect("a list").iter().any(|one| check(root, one, value).is_ok()),
                "properties" => {
                    for (name, schema) in want.as_object().expect("an object") {
                        if let Some(own) = value.get(name) {
                            check(root, schema, own)?;
                        }
                    }
                    true
                }
                "required" => want.as_array().expect("a list").iter().all(|name| {
                    value.as_object().is_none_or(|object| object.contains_key(name.as_str().expect("a name")))
                }),
                "additionalProperties" => {
                    let known = |name: &String| schema["properties"].get(name).is_some();
                    assert_eq!(*want, false, "this validator knows only false");
                    value.as_object().is_none_or(|object| object.keys().all(known))
                }
                "items" => {
                    for item in value.as_array().into_iter().flatten() {
                        check(root, want, item)?;
                    }
                    true
                }
                "maxItems" => at_most(count(value)),
                "minItems" => at_least(count(value)),
                "maxLength" => at_most(length(value)),
                "minLength" => at_least(length(value)),
                "maximum" => at_most(value.as_f64()),
                "minimum" => at_least(value.as_f64()),
                other => panic!("this validator does not know {other}"),
            };
        if !fits {
            return wrong(keyword);
        }
    }
    Ok(())
}

fn is_type(name: &Value, value: &Value) -> bool {
    match name.as_str().expect("a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type {other}"),
    }
}
