#!/usr/bin/env python3
"""Decoding speed at depth for each format of the key/value cache, as a ratio to f16.

    bench_kv.py --lapidary target/release/lapidary --model FILE [--depth 4096,16384] [--formats f16,tq8,tq8/tq4,tq4]
                [--rounds 3] [--repeat 3] [--gen 32] [--out FILE.json]

Formats are measured in turn, round after round, so that a slow spell of the machine hits all of them; a format's figure is
the median over all runs of all rounds. K/V pairs are written K/V.
"""
import argparse
import json
import statistics
import subprocess


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lapidary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--depth", default="4096")
    parser.add_argument("--formats", default="f16,f32,tq8,tq6,tq5,tq4,tq8/tq4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--gen", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out")
    args = parser.parse_args()
    formats = args.formats.split(",")
    results = []
    for depth in args.depth.split(","):
        speeds = {f: [] for f in formats}
        bytes_per_token = {}
        for _ in range(args.rounds):
            for f in formats:
                k, _, v = f.partition("/")
                out = subprocess.run(
                    [args.lapidary, "bench", "-m", args.model, "--prompt", "0", "--gen", str(args.gen), "--depth", depth,
                     "--kv-k", k, "--kv-v", v or k, "--repeat", str(args.repeat), "-t", str(args.threads), "--json"],
                    check=True, capture_output=True, text=True).stdout
                row = json.loads(out)["rows"][0]
                speeds[f].append(row["tokens_per_s"]["median"])
                bytes_per_token[f] = row["bytes_per_token"]
        base = statistics.median(speeds["f16"])
        for f in formats:
            median = statistics.median(speeds[f])
            row = {"depth": int(depth), "format": f, "tokens_per_s": median, "ratio_to_f16": median / base,
                   "bytes_per_token": bytes_per_token[f], "rounds": speeds[f]}
            results.append(row)
            print(f"depth {depth:>6}  {f:8}  {median:7.2f} t/s  {median / base:5.2f}", flush=True)
    if args.out:
        with open(args.out, "w") as file:
            json.dump({"model": args.model.rsplit("/", 1)[-1], "threads": args.threads, "gen": args.gen, "rows": results},
                      file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
