//! Perplexity equals the sum written out over whole-window logits.

mod common;

use std::sync::{Arc, Mutex};

use common::scripted::{Row, SMALL, Scripted, hash_row};
use common::{demo, story};
use mlxcel_compute::{Batch, Wanted};
use mlxcel_cpu::Precision;
use mlxcel_engine::perplexity::perplexity;
use mlxcel_model::{Logits, Model};

/// -ln p(next) at every position but the last, from one forward.
fn losses(model: &mut dyn Model, window: &[u32]) -> Vec<f64> {
    let (vocab, groups) = (model.info().vocab_size, model.kv_layout().len());
    let pages = window.len().div_ceil(model.page_len());
    model.reserve(&vec![pages; groups], 1).expect("pages");
    let table: Vec<u32> = (0..pages as u32).collect();
    let mut batch = Batch::new();
    batch.push(0, 0, window, &vec![&table[..]; groups], Wanted::All);
    let logits = model.forward(&batch).and_then(Logits::into_values).expect("forward");
    let rows = logits.chunks_exact(vocab).zip(&window[1..]);
    rows.map(|(row, next)| row.iter().map(|l| (f64::from(*l) - f64::from(row[*next as usize])).exp()).sum::<f64>().ln())
        .collect()
}

#[test]
fn equals_a_direct_computation() {
    let text = &story(301)[1..];
    for precision in [Precision::F32, Precision::Int8] {
        for (context, bos) in [(2048, Some(2)), (2048, None), (140, Some(2)), (77, None)] {
            let mut model = demo(precision);
            let mut heard = Vec::new();
            let result = perplexity(&mut *model, text, bos, context, |done, p| heard.push((done, p.tokens)));
            let result = result.expect("a figure");
            let (mut sum, mut tokens, mut done) = (0.0, 0, 0);
            let mut want = Vec::new();
            for chunk in text.chunks(context - bos.iter().len()) {
                let window: Vec<u32> = bos.iter().chain(chunk).copied().collect();
                assert!(window.len() <= context);
                let losses = losses(&mut *model, &window);
                assert_eq!(losses.len(), window.len() - 1);
                sum += losses.iter().sum::<f64>();
                tokens += losses.len();
                done += chunk.len();
                want.push((done, tokens));
            }
            assert_eq!(result.tokens, tokens);
            let nll = sum / tokens as f64;
            assert!((result.nll - nll).abs() < 1e-6, "{} expected {nll}", result.nll);
            assert!((result.value() - nll.exp()).abs() < 1e-4);
            assert!((0.1..5.0).contains(&nll), "the demo knows such stories better than by chance (9.7): {nll}");
            assert_eq!(heard, want, "progress");
        }
    }
}

#[test]
fn windows_start_afresh_and_never_grow_beyond_the_context() {
    let seen: Arc<Mutex<Vec<Vec<u32>>>> = Arc::default();
    let log = Arc::clone(&seen);
    let mut model = Scripted::model(SMALL, move |tokens| {
        log.lock().expect("log").push(tokens.to_vec());
        Row::Logits(hash_row(tokens))
    });
    let text: Vec<u32> = (0..700).map(|i| 420 + i % 77).collect();
    let result = perplexity(&mut *model, &text, Some(2), 300, |_, _| {}).expect("a figure");
    assert_eq!(result.tokens, 700);
    let rows = seen.lock().expect("log");
    assert_eq!(rows.len(), 703);
    assert!(rows.iter().all(|r| r.len() <= 300 && r[0] == 2));
    for (window, text) in rows.chunks(300).zip(text.chunks(299)) {
        assert_eq!(window.last().expect("rows")[1..], *text);
    }
}

#[test]
fn little_to_predict() {
    let mut model = demo(Precision::F32);
    for tokens in [&[][..], &[421]] {
        let error = perplexity(&mut *model, tokens, None, 2, |_, _| {}).expect_err("nothing to predict").to_string();
        assert_eq!(
            error,
            format!("text: at least 2 tokens, or one after the tokenizer's BOS expected, found {}", tokens.len())
        );
    }
    for (tokens, bos, counted) in [(&[421][..], Some(2), 1), (&[421; 3], Some(2), 3)] {
        let result = perplexity(&mut *model, tokens, bos, 2, |_, _| {}).expect("a figure");
        assert_eq!(result.tokens, counted);
        assert!(result.nll.is_finite());
    }
}

#[test]
fn faults_are_named() {
    let mut model = demo(Precision::F32);
    for context in [0, 1, 2049] {
        let error = perplexity(&mut *model, &[2, 421], None, context, |_, _| {}).expect_err("out of range");
        assert_eq!(error.to_string(), format!("--ctx-size: 2 to 2048 expected, found {context}"));
    }
    let mut model = Scripted::model(SMALL, |seen| if seen.len() == 4 { Row::Broken } else { Row::Token(421) });
    let error = perplexity(&mut *model, &[421; 9], None, 64, |_, _| {}).expect_err("not finite").to_string();
    assert!(error.contains("position 3 are not finite"), "{error}");
}
