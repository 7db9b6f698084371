//! Where the engine's values print or test otherwise than Python's.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, escape_formatter, filters};

/// Registers the replacements.
pub(super) fn install(env: &mut Environment<'_>) {
    env.set_formatter(format_value);
    env.add_filter("string", |state: &State, value: &Value| match float(value) {
        Some(f) => Ok(Value::from(float_repr(f))),
        None => filters::string(state, value),
    });
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("int", int);
    env.add_filter("float", to_float);
    env.add_filter("dictsort", dictsort);
    // Strings, dicts and undefined are sequences and iterables in Python's eyes; none is neither. Joined lists and
    // ranges are lazy here, which their known length gives away.
    env.add_test("sequence", |value: &Value| match value.kind() {
        ValueKind::Iterable => value.len().is_some(),
        other => is_container(other),
    });
    env.add_test("iterable", |value: &Value| match value.kind() {
        ValueKind::Iterable => true,
        other => is_container(other),
    });
    env.add_test("callable", |value: &Value| matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined));
}

fn is_container(kind: ValueKind) -> bool {
    matches!(kind, ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
}

fn format_value(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match float(value) {
        Some(f) => Ok(out.write_str(&float_repr(f))?),
        None => escape_formatter(out, state, value),
    }
}

fn float(value: &Value) -> Option<f64> {
    if value.kind() == ValueKind::Number && !value.is_integer() { f64::try_from(value.clone()).ok() } else { None }
}

/// The arguments of a Python function by position or name, each once.
fn arguments<const N: usize>(names: [&str; N], args: &[Value], kwargs: &Kwargs) -> Result<[Option<Value>; N], Error> {
    if args.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut given = [const { None }; N];
    for (i, name) in names.iter().enumerate() {
        given[i] = match args.get(i) {
            Some(value) => Some(value.clone()),
            None if kwargs.has(name) => Some(kwargs.get(name)?),
            None => None,
        };
    }
    kwargs.assert_all_used()?;
    Ok(given)
}

/// `value | default(default_value='', boolean=False)`.
fn default(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [other, boolean] = arguments(["default_value", "boolean"], &args, &kwargs)?;
    let falsy_too = boolean.is_some_and(|b| b.is_true());
    if value.is_undefined() || (falsy_too && !value.is_true()) {
        Ok(other.unwrap_or_else(|| Value::from("")))
    } else {
        Ok(value.clone())
    }
}

/// `value | int(default=0, base=10)`: the default where there is no number.
fn int(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [other, base] = arguments(["default", "base"], &args, &kwargs)?;
    let base = match base {
        Some(base) => u32::try_from(base)?,
        None => 10,
    };
    if !(2..=36).contains(&base) {
        return Err(Error::new(ErrorKind::InvalidOperation, "int: base must be in 2..=36"));
    }
    let number = match value.kind() {
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number => match float(value) {
            // Casts of floats saturate; a prompt has no use for larger integers.
            Some(f) => f.is_finite().then(|| Value::from(f as i64)),
            None => Some(value.clone()),
        },
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default().trim().replace('_', "");
            match i64::from_str_radix(&text, base) {
                Ok(n) => Some(Value::from(n)),
                Err(_) => text.parse::<f64>().ok().filter(|f| f.is_finite()).map(|f| Value::from(f as i64)),
            }
        }
        _ => None,
    };
    Ok(number.or(other).unwrap_or_else(|| Value::from(0)))
}

/// `value | float(default=0.0)`.
fn to_float(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [other] = arguments(["default"], &args, &kwargs)?;
    let number = match value.kind() {
        ValueKind::Bool => Some(if value.is_true() { 1.0 } else { 0.0 }),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => value.as_str().and_then(|s| s.trim().parse().ok()),
        _ => None,
    };
    Ok(number.map(Value::from).or(other).unwrap_or_else(|| Value::from(0.0)))
}

/// `value | dictsort(case_sensitive=False, by='key', reverse=False)`, also by position.
fn dictsort(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let names = ["case_sensitive", "by", "reverse"];
    let given = arguments(names, &args, &kwargs)?;
    let named: Kwargs = names.into_iter().zip(given).filter_map(|(name, value)| Some((name, value?))).collect();
    filters::dictsort(value, named)
}

/// A float as Python prints it: the shortest digits that read back, with an exponent from 1e16 up and below 1e-4.
pub(super) fn float_repr(f: f64) -> String {
    if f.is_nan() {
        return "nan".to_owned();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let size = f.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{f:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(rest) => ('-', rest),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = f.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_python_prints_them() {
        for (f, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (1.5e300, "1.5e+300"),
        ] {
            assert_eq!(float_repr(f), expected);
        }
    }
}
