//! The plot, read back as XML.

use super::*;
use crate::report::sample;

fn texts(document: &roxmltree::Document<'_>) -> Vec<String> {
    let nodes = document.descendants().filter(|node| node.has_tag_name("text"));
    nodes.filter_map(|node| node.text()).map(String::from).collect()
}

fn hints(document: &roxmltree::Document<'_>) -> Vec<String> {
    let marks = document.descendants().filter(|node| node.has_tag_name("circle") || node.has_tag_name("rect"));
    marks
        .filter_map(|node| node.children().find(|child| child.has_tag_name("title"))?.text())
        .map(String::from)
        .collect()
}

#[test]
fn a_panel_a_pairing_with_all_its_widths() {
    let rows = sample::sweep();
    let svg = render(&rows);
    let document = roxmltree::Document::parse(&svg).expect("XML");
    let texts = texts(&document);
    let count = |text: &str| texts.iter().filter(|t| *t == text).count();
    assert_eq!(count("gemma-4-tiny-4bit (mtp)"), 1);
    assert_eq!(count("qwen3.5-tiny-4bit (mtp)"), 1);
    for width in ["2", "4", "8", "adaptive", "speedup", "acceptance_rate", "K (block width)"] {
        assert_eq!(count(width), 2, "{width} once a panel");
    }
    let hints = hints(&document);
    let speedups: Vec<f64> = rows
        .iter()
        .filter(|row| row.pairing == "gemma-4-tiny-4bit" && row.k == Some(4))
        .filter_map(|row| row.speedup.map(|s| s.median))
        .collect();
    let median = words::median(&speedups).expect("three prompts");
    assert!(hints.contains(&format!("K = 4: speedup {median:.3}")), "{hints:?}");
    assert_eq!(hints.len(), 2 * 2 * 4, "two series, two panels, four widths");
    assert!(texts.iter().any(|t| t.starts_with("not measured: gemma-4-31b-bf16") && t.contains("absent")), "{texts:?}");
    assert!(count("single prompts") == 1 && count("output differed") == 0);
}

#[test]
fn points_lie_where_their_values_are() {
    let mut rows: Vec<Row> = [2, 4, 8].map(|k| sample::row("p", "code", Some(k))).into();
    for (row, speedup) in rows.iter_mut().zip([0.5, 1.0, 2.0]) {
        row.speedup = row.speedup.map(|_| crate::row::Spread { median: speedup, min: speedup, max: speedup });
    }
    let svg = render(&rows);
    let document = roxmltree::Document::parse(&svg).expect("XML");
    let place = |k: usize| {
        let node = document.descendants().find(|node| {
            let hint = node.children().find(|child| child.has_tag_name("title")).and_then(|child| child.text());
            hint.is_some_and(|hint| hint.starts_with(&format!("K = {k}: speedup")))
        });
        let number = |name| node.and_then(|n| n.attribute(name)).and_then(|v| v.parse::<f64>().ok()).expect("a number");
        (number("cx"), number("cy"))
    };
    let (two, four, eight) = (place(2), place(4), place(8));
    assert!(two.1 > four.1 && four.1 > eight.1, "faster is higher");
    assert!(((two.1 - four.1) * 2.0 - (four.1 - eight.1)).abs() < 0.3, "in proportion");
    assert!(((four.0 - two.0) * 2.0 - (eight.0 - four.0)).abs() < 0.3, "and so is K");
    // Plain decoding is where a speedup of 1 is.
    let plain = document.descendants().filter(|n| n.attribute("stroke-dasharray") == Some("7 4"));
    let heights: Vec<f64> = plain.filter_map(|n| n.attribute("y1")?.parse().ok()).collect();
    assert!(heights.iter().any(|y| (y - four.1).abs() < 0.11), "{heights:?} {four:?}");
}

#[test]
fn simulated_and_differing_rows_are_marked() {
    let mut rows = sample::sweep();
    assert!(!render(&rows).to_lowercase().contains("simulated"));
    for row in rows.iter_mut().filter(|row| row.kind != "none") {
        (row.simulated, row.kind) = (true, "simulated".into());
    }
    rows[2].output_identical = Some(false);
    let svg = render(&rows);
    let document = roxmltree::Document::parse(&svg).expect("XML");
    let texts = texts(&document);
    assert!(texts[0].contains("(simulated acceptance)"), "{}", texts[0]);
    assert!(texts.iter().any(|t| t == "gemma-4-tiny-4bit [simulated]"));
    assert!(texts.iter().any(|t| t == "output differed"));
    assert!(hints(&document).iter().any(|hint| hint == "K = 4: output differed from plain decoding"));
}

#[test]
fn any_rows_make_a_document() {
    let nasty = "<script>&\"'\u{7}]]>";
    let mut odd = sample::row(nasty, nasty, Some(4));
    (odd.device, odd.backend) = (nasty.into(), nasty.into());
    let failed = sample::unmeasured(nasty, Some(2), Status::Failed(format!("{nasty} {}", "long ".repeat(100))));
    let mut without = sample::row("p", "code", Some(4));
    without.speedup = None;
    let mut broken = sample::row("p", "code", Some(4));
    broken.speedup = Some(crate::row::Spread { median: f64::NAN, min: f64::NAN, max: f64::INFINITY });
    broken.acceptance_rate = Some(f64::NAN);
    let mut adaptive = sample::row("p", "code", None);
    adaptive.batch = 4;
    for rows in [
        vec![],
        vec![odd],
        vec![failed],
        vec![without],
        vec![broken],
        vec![adaptive],
        vec![sample::row("p", "code", Some(1))],
        (0..30).map(|i| sample::unmeasured(&format!("p{i}"), None, Status::Skipped("no".into()))).collect(),
    ] {
        let svg = render(&rows);
        let document = roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let size = |name| document.root_element().attribute(name).and_then(|v| v.parse::<f64>().ok()).expect("a size");
        assert!(size("width") >= 500.0 && size("height") >= 100.0);
    }
}
