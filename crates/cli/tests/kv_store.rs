//! The disk store of keys and values under `kill -9`: no wrong token ever, no store that cannot be read, and warm hits
//! afterwards.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What every prompt begins with, so that stores of different prompts share blocks.
const STORY: &str = "Once upon a time there was a miller who had three sons, a mill, a donkey and a cat. ";

fn prompt(seed: usize) -> String {
    format!(
        "{}{}",
        STORY.repeat(12 + seed % 3),
        format!("The number {seed} is on the door. ").repeat(5 + seed % 7)
    )
}

fn generate(prompt: &str, store: Option<&Path>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lapidary"));
    // Every variable that could change the run goes.
    command.env_remove("LAPIDARY_MODEL").env_remove("LAPIDARY_DEVICE").env_remove("LAPIDARY_THREADS");
    command.args([
        "generate",
        "-p",
        prompt,
        "-n",
        "24",
        "--temp",
        "0",
        "--ignore-eos",
        "--json",
        "--kv",
        "tq8",
    ]);
    if let Some(store) = store {
        command.arg("--kv-store").arg(store);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Ids, tokens that came from the cache, and what was said on stderr.
fn finish(command: &mut Command) -> (Vec<u64>, u64, String) {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let ids = json["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    (ids, json["timings"]["cached_tokens"].as_u64().unwrap(), stderr)
}

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

/// Kills the run some time after it began to write; says whether it was still alive then.
fn kill_while_writing(mut child: Child, dir: &Path, before: usize, delay: Duration) -> bool {
    let begin = Instant::now();
    while entries(dir) == before && child.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < Duration::from_secs(120), "the run does nothing");
        std::thread::sleep(Duration::from_micros(200));
    }
    std::thread::sleep(delay);
    let alive = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    alive
}

fn survives(kills: usize) {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mut in_the_middle = 0;
    for i in 0..kills {
        let prompt = prompt(i);
        let before = entries(&store);
        let child = generate(&prompt, Some(&store)).spawn().unwrap();
        // Spread over what writing some dozen blocks takes.
        let delay = Duration::from_micros((i as u64 * 7919) % 20_000);
        in_the_middle += usize::from(kill_while_writing(child, &store, before, delay));
        let (cold, _, _) = finish(&mut generate(&prompt, None));
        let (first, _, said) = finish(&mut generate(&prompt, Some(&store)));
        assert_eq!(first, cold, "run {i} after a crash");
        assert!(!said.contains("warning"), "a killed writer left something: {said}");
        let (second, cached, _) = finish(&mut generate(&prompt, Some(&store)));
        assert_eq!(second, cold, "warm run {i}");
        assert!(cached > 100, "run {i}: only {cached} tokens were warm");
    }
    println!("{in_the_middle} of {kills} runs were killed in the middle of writes");
    assert!(in_the_middle > 0, "no run was killed while it wrote");
}

#[test]
fn a_killed_writer_leaves_a_sound_store() {
    survives(4);
}

#[test]
#[ignore = "takes minutes: fifty crashes"]
fn fifty_killed_writers_leave_a_sound_store() {
    survives(50);
}

#[test]
fn damaged_files_are_reported_and_do_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = prompt(3);
    let (cold, _, _) = finish(&mut generate(&prompt, None));
    finish(&mut generate(&prompt, Some(dir.path())));
    let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(files.len() > 4, "{} files", files.len());
    for (i, file) in files.iter().enumerate() {
        let mut bytes = std::fs::read(file).unwrap();
        let at = (i * 7919) % bytes.len();
        match i % 3 {
            0 => bytes[at] ^= 4,
            1 => bytes.truncate(at),
            _ => bytes = b"something else".to_vec(),
        }
        std::fs::write(file, bytes).unwrap();
    }
    let (ids, _, said) = finish(&mut generate(&prompt, Some(dir.path())));
    assert_eq!(ids, cold);
    assert!(said.contains("is not used and removed"), "{said}");
    // A damaged file that one run had no need of is met by a later one, once.
    for _ in 0..=files.len() {
        let (ids, cached, said) = finish(&mut generate(&prompt, Some(dir.path())));
        assert_eq!(ids, cold);
        if !said.contains("warning") {
            assert!(cached > 100, "{cached} cached");
            return;
        }
    }
    panic!("the store does not recover");
}
