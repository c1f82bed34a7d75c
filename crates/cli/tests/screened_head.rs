//! The screened output matrix on the demo model: the same tokens as with the whole one, and a report of the work.

#![cfg(feature = "demo-model")]

use std::process::Command;

use serde_json::Value;

fn generate(extra: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_lapidary"))
        .args(["generate", "--device", "cpu", "-p", "Once upon a time", "-n", "48", "--ignore-eos", "--json"])
        .args(extra)
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_screened_head_changes_no_token() {
    let settings: [&[&str]; 6] = [
        &["--temp", "0"],
        &["--temp", "0.9", "--top-k", "8", "--seed", "5"],
        &["--temp", "1", "--seed", "6"],
        &["--temp", "1", "--top-k", "0", "--seed", "7"],
        &["--temp", "0", "--repeat-penalty", "1.2"],
        &["--temp", "0", "--activations", "f32"],
    ];
    for setting in settings {
        let native = generate(&[setting, &["--head", "native"]].concat());
        let screened = generate(&[setting, &["--head", "screened"]].concat());
        assert_eq!(native["ids"], screened["ids"], "{setting:?}");
        assert!(native["screened_head"].is_null());
        let work = &screened["screened_head"];
        let (tokens, declined) = (work["tokens"].as_u64().unwrap(), work["declined"].as_u64().unwrap());
        if setting.contains(&"0") && setting.contains(&"--top-k") {
            // Every logit counts: the copy is of no use.
            assert_eq!((tokens, declined), (0, 0), "{setting:?}");
        } else {
            assert!(tokens >= 40, "{setting:?}: {work}");
            // 4096 logits each would be the whole matrix.
            assert!(work["rescored"].as_u64().unwrap() < tokens * 512, "{setting:?}: {work}");
        }
    }
}
