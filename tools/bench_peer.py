#!/usr/bin/env python3
"""Compare lapidary's speed with llama.cpp's, interleaved on one machine.

    bench_peer.py --lapidary target/release/lapidary --llama DIR --model FILE [--tests pp512,tg64,tg32@4096]
                  [--baseline OLD-LAPIDARY] [--start] [--threads 2] [--rounds 5] [--out FILE.json]

DIR holds llama-bench and llama-completion of a build for this machine. A test is `ppN`, a prompt of N tokens, or `tgN`,
N generated tokens, `@D` after it at depth D. Each round runs every test with the peer without and with flash attention,
with the baseline if there is one, and with lapidary, one after the other, so that a slow spell of the machine hits all;
the peer's better figure of the two counts. Reported are medians over the rounds and the ratio of the medians. With
--start also: seconds from start to the first token of a nine-token prompt with a warm page cache, and lapidary's peak
resident memory at a context of 2048.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

PROMPT = "The quick brown fox jumps over the lazy"  # eight tokens and BOS in Gemma's vocabularies


def run(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True, **options)


class Test:
    def __init__(self, text):
        match = re.fullmatch(r"(pp|tg)(\d+)(?:@(\d+))?", text)
        if not match:
            raise argparse.ArgumentTypeError(f"{text!r} is no test: write pp512, tg64 or tg32@4096")
        self.name, self.kind = text, match[1]
        self.tokens, self.depth = int(match[2]), int(match[3] or 0)

    def peer(self, args, flash):
        prompt, gen = (self.tokens, 0) if self.kind == "pp" else (0, self.tokens)
        out = run(args.llama / "llama-bench", "-m", args.model, "-t", args.threads, "-p", prompt, "-n", gen,
                  "-d", self.depth, "-r", 1, "-fa", flash, "-o", "json", env={"LD_LIBRARY_PATH": str(args.llama)})
        return json.loads(out.stdout)[0]["avg_ts"]

    def own(self, args, binary):
        prompt, gen = (self.tokens, 0) if self.kind == "pp" else (0, self.tokens)
        out = run(binary, "bench", "-m", args.model, "-t", args.threads, "--device", "cpu", "--prompt", prompt,
                  "--gen", gen, "--depth", self.depth, "--repeat", 1, "--json")
        report = json.loads(out.stdout)
        row = report["rows"][0]
        return {"speed": row["tokens_per_s"]["median"], "share": row["bandwidth_share"],
                "bandwidth": report["read_bandwidth_gb_per_s"]}


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


def compare(args, test):
    """One test: medians over the rounds."""
    peers, own, baseline = {0: [], 1: []}, [], []
    for _ in range(args.rounds):
        for flash in peers:
            peers[flash].append(test.peer(args, flash))
        if args.baseline:
            baseline.append(test.own(args, args.baseline)["speed"])
        own.append(test.own(args, args.lapidary))
    median = lambda key: statistics.median(o[key] for o in own)
    flash, peer = max(((f, statistics.median(s)) for f, s in peers.items()), key=lambda p: p[1])
    result = {"lapidary": median("speed"), "llama.cpp": peer, "flash_attention": bool(flash),
              "ratio": median("speed") / peer, "read_bandwidth_gb_per_s": median("bandwidth"),
              "bandwidth_share": median("share"), "lapidary_rounds": [o["speed"] for o in own],
              "llama.cpp_rounds": peers[flash]}
    if args.baseline:
        result["baseline"] = statistics.median(baseline)
        result["over_baseline"] = result["lapidary"] / result["baseline"]
    return result


def starts(args):
    own_command = (args.lapidary, "generate", "-m", args.model, "-p", PROMPT, "-n", 1, "--temp", 0, "-t", args.threads)
    peer_command = (args.llama / "llama-completion", "-m", args.model, "-p", PROMPT, "-n", 1, "--temp", 0,
                    "-t", args.threads, "-no-cnv", "-c", 512)
    own, peer = [], []
    for _ in range(args.rounds):
        own.append(first_token(own_command))
        peer.append(first_token(peer_command, env={"LD_LIBRARY_PATH": str(args.llama)}))
    own, peer = statistics.median(own), statistics.median(peer)
    return {"lapidary": own, "llama.cpp": peer, "ratio": peer / own}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lapidary", type=pathlib.Path, required=True)
    ap.add_argument("--llama", type=pathlib.Path, required=True)
    ap.add_argument("--model", type=pathlib.Path, required=True)
    ap.add_argument("--baseline", type=pathlib.Path, help="an older lapidary")
    ap.add_argument("--tests", type=lambda text: [Test(t) for t in text.split(",")], default="pp512,tg64")
    ap.add_argument("--start", action="store_true")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--out", type=pathlib.Path)
    args = ap.parse_args()

    result = {"model": args.model.name, "file_bytes": args.model.stat().st_size, "threads": args.threads,
              "rounds": args.rounds, "tests": {}}
    print(f"{'test':<12} {'lapidary':>9} {'llama.cpp':>9} {'ratio':>6}" + ("  over baseline" if args.baseline else ""))
    for test in args.tests:
        figures = result["tests"][test.name] = compare(args, test)
        line = f"{test.name:<12} {figures['lapidary']:9.1f} {figures['llama.cpp']:9.1f} {figures['ratio']:6.2f}"
        if args.baseline:
            line += f" {figures['over_baseline']:14.2f}"
        print(line, flush=True)
    if args.start:
        result["first_token_s"] = starts(args)
        result["peak_bytes_at_2k"] = peak_memory(args)
        seconds = result["first_token_s"]
        print(f"{'start, s':<12} {seconds['lapidary']:9.3f} {seconds['llama.cpp']:9.3f} {seconds['ratio']:6.2f}")
        print(f"peak memory at 2k tokens {result['peak_bytes_at_2k'] / 1e6:.0f} MB, "
              f"file {result['file_bytes'] / 1e6:.0f} MB")
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
