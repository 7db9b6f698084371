use super::*;
use clap::CommandFactory;

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn biases_parse() {
    assert_eq!(parse_bias("12-3.5"), Ok((12, -3.5)));
    assert_eq!(parse_bias("12+3"), Ok((12, 3.0)));
    assert_eq!(parse_bias("12:-1"), Ok((12, -1.0)));
    for bad in ["", "12", "x+1", "12+", "12+inf", "-1+2"] {
        assert!(parse_bias(bad).is_err(), "{bad}");
    }
}
