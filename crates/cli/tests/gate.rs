//! `lapidary gate` on the demo model.

#![cfg(feature = "demo-model")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A directory with a text of some hundred tokens, `text.txt`.
fn text() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let story = "Once upon a time there was a little girl who had a red ball. She liked to play with it in the park. \
                 One day the ball rolled into the water, and a big dog jumped in to bring it back. ";
    std::fs::write(dir.path().join("text.txt"), story.repeat(4)).unwrap();
    dir
}

fn gate(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lapidary"))
        .current_dir(dir)
        .args(["gate", "-f", "text.txt", "-t", "1"])
        .args(if args.contains(&"-c") { &[][..] } else { &["-c", "64"] })
        .args(args)
        .env_remove("LAPIDARY_MODEL")
        .output()
        .expect("the binary runs")
}

fn json(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"))
}

fn fails(dir: &Path, args: &[&str], status: i32, says: &str) {
    let output = gate(dir, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
    assert!(
        stderr.contains(says) && !stderr.contains("panicked"),
        "{args:?} does not say '{says}': {stderr}"
    );
    assert!(output.stdout.is_empty(), "{args:?} wrote to stdout");
}

#[test]
fn a_cache_is_exactly_as_good_as_itself() {
    let dir = text();
    for format in ["f32", "tq4"] {
        let output = gate(dir.path(), &["--kv", format, "--reference", format, "--json"]);
        assert_eq!(output.status.code(), Some(0), "{format}");
        let report = json(&output);
        assert_eq!(report["kld_mean"], 0.0, "{format}");
        assert_eq!(report["kld_p99"], 0.0);
        assert_eq!(report["same_top1"], 1.0);
        assert_eq!(report["delta_percent"], 0.0);
        assert_eq!(report["first_divergence"], Value::Null);
        assert_eq!(report["reference"]["perplexity"], report["candidate"]["perplexity"]);
        let layers = report["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 6);
        assert!(layers.iter().all(|layer| layer["cosine"] == 1.0 && layer["rel_l2"] == 0.0));
        assert_eq!(report["passed"], true);
    }
}

#[test]
fn the_perplexities_are_those_of_the_perplexity_command() {
    let dir = text();
    let report = json(&gate(dir.path(), &["--kv", "tq4", "--json"]));
    for (format, cache) in [("f32", "reference"), ("tq4", "candidate")] {
        let output = Command::new(env!("CARGO_BIN_EXE_lapidary"))
            .current_dir(dir.path())
            .args(["perplexity", "-f", "text.txt", "-c", "64", "--json", "--kv", format])
            .env_remove("LAPIDARY_MODEL")
            .output()
            .unwrap();
        let expected = json(&output);
        assert_eq!(report["tokens"], expected["tokens"]);
        let (found, expected) = (&report[cache]["perplexity"], &expected["perplexity"]);
        let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
        // `perplexity` sums exponentials in f32.
        assert!((found / expected - 1.0).abs() < 1e-5, "{format}: {found} for {expected}");
    }
}

#[test]
fn the_continuation_parts_where_two_runs_of_generate_do() {
    let dir = text();
    let report = json(&gate(dir.path(), &["--kv", "tq4", "--greedy", "24", "--json"]));
    // The prompt is the first half of the first chunk: BOS and 31 tokens of the text, which this many words give.
    let run = |command: &str, args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_lapidary"))
            .current_dir(dir.path())
            .arg(command)
            .args(args)
            .args(["--json"])
            .env_remove("LAPIDARY_MODEL")
            .output()
            .unwrap();
        json(&output)
    };
    let ids = run("tokenize", &["-f", "text.txt"])["ids"].clone();
    let text = std::fs::read_to_string(dir.path().join("text.txt")).unwrap();
    let prompt = (0..text.len())
        .filter(|&end| text.is_char_boundary(end))
        .map(|end| &text[..end])
        .find(|prefix| {
            run("tokenize", &["-p", prefix])["ids"].as_array().unwrap()[..] == ids.as_array().unwrap()[..32]
        })
        .expect("a prefix of the text has the first 32 tokens");
    let generate = |format: &str| {
        let args = ["-p", prompt, "-n", "24", "--temp", "0", "--ignore-eos", "--kv", format];
        run("generate", &args)["ids"].as_array().unwrap().clone()
    };
    let (reference, candidate) = (generate("f32"), generate("tq4"));
    let n = report["greedy_tokens"].as_u64().unwrap() as usize;
    let expected = reference.iter().zip(&candidate).take(n).position(|(a, b)| a != b);
    assert_eq!(report["first_divergence"].as_u64(), expected.map(|n| n as u64));
}

#[test]
fn fewer_bits_cost_more() {
    let dir = text();
    // Rounded activations would add noise of their own, much above what these caches do to so small a model.
    let exact = ["--activations", "f32", "--json"];
    let output = gate(dir.path(), &[&exact[..], &["--grid=f16,tq8,tq4"]].concat());
    assert_eq!(output.status.code(), Some(0));
    let report = json(&output);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9);
    let row = |keys: &str, values: &str| {
        let found =
            rows.iter().find(|r| r["candidate"]["keys"] == keys && r["candidate"]["values"] == values);
        found.unwrap_or_else(|| panic!("no row {keys} {values}"))
    };
    let kld = |format: &str| row(format, format)["kld_mean"].as_f64().unwrap();
    assert!(kld("f16") < kld("tq8") && kld("tq8") < kld("tq4"));
    let bytes =
        |keys: &str, values: &str| row(keys, values)["candidate"]["bytes_per_token"].as_u64().unwrap();
    assert_eq!(2 * bytes("f16", "tq4"), bytes("f16", "f16") + bytes("tq4", "tq4"));
    // A row of the grid is what the pair gives alone.
    let alone = json(&gate(dir.path(), &[&exact[..], &["--kv-k", "tq8", "--kv-v", "tq4"]].concat()));
    let mixed = row("tq8", "tq4");
    // Little memory means more passes over the text, and the same figures.
    let little = gate(dir.path(), &[&exact[..], &["--grid=f16,tq8,tq4", "--kv-memory", "2M"]].concat());
    assert_eq!(json(&little)["rows"], report["rows"]);
    for field in ["kld_mean", "kld_p99", "same_top1", "delta_percent", "first_divergence", "layers"] {
        assert_eq!(alone[field], mixed[field], "{field}");
    }
}

#[test]
fn grids_read_as_tables() {
    let dir = text();
    let output = gate(dir.path(), &["--grid=f16,tq8", "--markdown"]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stdout.lines().filter(|line| line.starts_with("| ")).count(), 2 + 4, "{stdout}");
    fails(dir.path(), &["--grid=f32"], 1, "name more formats");
    fails(dir.path(), &["--grid=q8"], 2, "tq8");
    fails(dir.path(), &["--grid", "--kv", "f16"], 2, "cannot be used with");
}

#[test]
fn missed_limits_are_listed() {
    let dir = text();
    let limits = ["--max-kld", "0", "--max-delta", "0", "--min-top1", "100", "--min-cosine", "1"];
    let output = gate(dir.path(), &[&limits[..], &["--kv", "tq4", "--json"]].concat());
    let report = json(&output);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(report["passed"], false);
    assert!(report["missed"].as_array().unwrap().len() > 6, "{}", report["missed"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    for words in ["missed: mean KL divergence", "missed: perplexity", "falls short", "more layers"] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    // The same run within wide limits.
    let limits = ["--max-kld", "9", "--max-delta", "99", "--min-top1", "0", "--min-cosine", "-1"];
    let output = gate(dir.path(), &[&limits[..], &["--kv", "tq4"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn errors_say_what_to_do() {
    let dir = text();
    fails(dir.path(), &["-c", "100000"], 1, "lower -c");
    fails(dir.path(), &["-c", "8192"], 1, "lower -c, or give a longer text");
    fails(dir.path(), &["-c", "3"], 2, "3");
    fails(dir.path(), &["--reference", "f32/"], 2, "no KV format");
    fails(dir.path(), &["--max-kld", "-1"], 2, "not negative");
    fails(dir.path(), &["--min-top1", "101"], 2, "100");
    fails(dir.path(), &["--plot", "text.txt"], 1, "is an input");
    fails(dir.path(), &["--kv-memory", "1M"], 1, "beside the f32 reference");
    fails(dir.path(), &["--plot", "nowhere/plot.svg"], 1, "no folder");
    fails(dir.path(), &["--plot", "."], 1, "no regular file");
}

#[test]
fn plots_are_well_formed_and_whole() {
    let dir = text();
    for format in ["tq4", "f32"] {
        let output = gate(dir.path(), &["--kv", format, "--max-kld", "0.5", "--plot", "plot.svg"]);
        assert!(!output.stdout.is_empty());
        let svg = std::fs::read_to_string(dir.path().join("plot.svg")).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let root = document.root_element();
        assert!(root.has_tag_name(("http://www.w3.org/2000/svg", "svg")));
        let words: Vec<&str> = document.descendants().filter_map(|n| n.text()).collect();
        for word in ["KL divergence", "position in the context", "layer", "median"] {
            assert!(words.contains(&word), "{word}: {words:?}");
        }
        // One mark a layer, and nothing outside the picture.
        let number = |node: roxmltree::Node, name| node.attribute(name).unwrap().parse::<f64>().unwrap();
        let width = number(root, "width");
        let height = number(root, "height");
        for dot in document.descendants().filter(|n| n.has_tag_name("circle")) {
            assert!(
                (0.0..=width).contains(&number(dot, "cx")) && (0.0..=height).contains(&number(dot, "cy"))
            );
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf\""));
    }
}
