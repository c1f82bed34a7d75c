#!/usr/bin/env python3
"""Compare lapidary's speed with llama.cpp's, interleaved on one machine.

    bench_peer.py --lapidary target/release/lapidary --llama DIR --model FILE [--threads 2] [--rounds 5] [--out FILE.json]

DIR holds llama-bench and llama-completion of a build for this machine. Each round runs the peer without and with flash
attention and lapidary, one after the other, so that a slow spell of the machine hits all; the peer's better figure of
the two counts. Reported are medians over the rounds and the ratio of the medians. Also: seconds from start to the
first token of a ten-token prompt with a warm page cache, and lapidary's peak resident memory at a context of 2048.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

PROMPT = "The quick brown fox jumps over the lazy"  # nine tokens and BOS in Gemma's vocabularies


def run(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True, **options)


def peer_speeds(args, flash):
    out = run(args.llama / "llama-bench", "-m", args.model, "-t", args.threads, "-p", args.prompt, "-n", args.gen,
              "-r", 1, "-fa", flash, "-o", "json", env={"LD_LIBRARY_PATH": str(args.llama)})
    rows = json.loads(out.stdout)
    return {("pp" if r["n_prompt"] else "tg"): r["avg_ts"] for r in rows}


def own_speeds(args):
    out = run(args.lapidary, "bench", "-m", args.model, "-t", args.threads, "--prompt", args.prompt, "--gen", args.gen,
              "--repeat", 1, "--json")
    report = json.loads(out.stdout)
    speeds = {r["test"][:2]: r["tokens_per_s"]["median"] for r in report["rows"]}
    speeds["bandwidth"] = report["read_bandwidth_gb_per_s"]
    speeds["share"] = next(r["bandwidth_share"] for r in report["rows"] if r["test"].startswith("tg"))
    return speeds


def first_token(command, **options):
    begin = time.perf_counter()
    run(*command, **options)
    return time.perf_counter() - begin


def peak_memory(args):
    """Peak resident bytes of a generation at a context of 2048, the mapped file's pages counted."""
    process = subprocess.Popen(
        [str(args.lapidary), "generate", "-m", str(args.model), "-p", "word " * 1980, "-n", "40", "-c", "2048",
         "--temp", "0", "--ignore-eos", "--json", "-t", str(args.threads)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"generate ended with status {status}")
    return usage.ru_maxrss * 1024


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lapidary", type=pathlib.Path, required=True)
    ap.add_argument("--llama", type=pathlib.Path, required=True)
    ap.add_argument("--model", type=pathlib.Path, required=True)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--prompt", type=int, default=512)
    ap.add_argument("--gen", type=int, default=64)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--out", type=pathlib.Path)
    args = ap.parse_args()

    peer, own, start_own, start_peer = [], [], [], []
    own_command = (args.lapidary, "generate", "-m", args.model, "-p", PROMPT, "-n", 1, "--temp", 0, "-t", args.threads)
    peer_command = (args.llama / "llama-completion", "-m", args.model, "-p", PROMPT, "-n", 1, "--temp", 0,
                    "-t", args.threads, "-no-cnv", "-c", 512)
    for _ in range(args.rounds):
        both = [peer_speeds(args, flash) for flash in (0, 1)]
        peer.append({test: max(b[test] for b in both) for test in both[0]})
        own.append(own_speeds(args))
        start_own.append(first_token(own_command))
        start_peer.append(first_token(peer_command, env={"LD_LIBRARY_PATH": str(args.llama)}))
    median = lambda rows, key: statistics.median(r[key] for r in rows)

    peak = peak_memory(args)

    result = {
        "model": args.model.name, "threads": args.threads, "rounds": args.rounds,
        "prompt": {"lapidary": median(own, "pp"), "llama.cpp": median(peer, "pp")},
        "decode": {"lapidary": median(own, "tg"), "llama.cpp": median(peer, "tg")},
        "read_bandwidth_gb_per_s": median(own, "bandwidth"), "decode_bandwidth_share": median(own, "share"),
        "first_token_s": {"lapidary": statistics.median(start_own), "llama.cpp": statistics.median(start_peer)},
        "peak_bytes_at_2k": peak, "file_bytes": args.model.stat().st_size,
    }
    for test in ("prompt", "decode"):
        result[test]["ratio"] = result[test]["lapidary"] / result[test]["llama.cpp"]
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
