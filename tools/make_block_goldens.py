#!/usr/bin/env python3
"""Write the golden files of the block formats: crates/gguf/tests/data/{decode,encode}.

    pip install numpy gguf
    python tools/make_block_goldens.py --ggml path/to/libggml-base.so

decode/TYPE.blocks and TYPE.values: random blocks, and what the `gguf` Python package makes of them (f32).
encode/input.f32 and importance.f32: rows of 512 numbers and importances of the columns; encode/TYPE.plain and
TYPE.weighted: what `ggml_quantize_chunk` of a llama.cpp build makes of them without and with importances.

All numbers are little endian. The seed is fixed, so the files come out the same.
"""

import argparse
import ctypes
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

DATA = Path(__file__).resolve().parent.parent / "crates/gguf/tests/data"
N_PER_ROW = 512

# Byte offsets of the halves in a block of each format.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0], "MXFP4": [],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_XS": [0],
}
ENCODED = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
           "IQ4_NL", "IQ4_XS"]


def decode_goldens(rng):
    """Random bytes with scales that are zero, subnormal, ordinary and the largest of the format."""
    scales = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xB555, 0x7BFF, 0xFBFF, 0x211A], "<u2")
    for name, halves in HALVES.items():
        qtype = GGMLQuantizationType[name]
        block_len, block_bytes = GGML_QUANT_SIZES[qtype]
        n_blocks = max(len(scales), 12 * 32 // block_len)
        blocks = rng.integers(0, 256, (n_blocks, block_bytes), dtype=np.uint8)
        for i in range(n_blocks):
            for k, at in enumerate(halves):
                blocks[i, at:at + 2] = scales[[(i + 3 * k) % len(scales)]].view(np.uint8)
        if name == "MXFP4":
            blocks[:6, 0] = [0, 1, 2, 127, 250, 254]
        write_decoded(name, qtype, blocks)
    patterns = rng.integers(0, 1 << 16, 500, dtype=np.uint16)
    special = np.array([0, 0x8000, 1, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0xFC00, 0x7C01, 0x7E00, 0x7F80, 0xFF81], np.uint16)
    patterns = np.concatenate([special, patterns]).astype("<u2")
    for name in ["F16", "BF16"]:
        write_decoded(name, GGMLQuantizationType[name], patterns.view(np.uint8).reshape(1, -1))


def write_decoded(name, qtype, blocks):
    with np.errstate(all="ignore"):
        values = quants.dequantize(blocks, qtype).astype("<f4")
    (DATA / "decode" / f"{name.lower()}.blocks").write_bytes(blocks.tobytes())
    (DATA / "decode" / f"{name.lower()}.values").write_bytes(values.tobytes())


def rows(rng):
    """Rows as models have them, and rows that lead the searches into their corners."""
    n = N_PER_ROW
    normal = rng.standard_normal
    sparse = normal(n) * (rng.random(n) < 0.1)
    holes = np.repeat(rng.random(n // 16) < 0.5, 16) * normal(n)
    spike = normal(n) * 0.01
    spike[[3, 100, 300]] = [7.0, -9.0, 5.0]
    tiny = np.concatenate([normal(256) * 1e-20, normal(256) * 1e-40])
    equal = np.concatenate([np.full(256, 0.37), np.full(256, -0.37)])
    zeros = np.concatenate([np.zeros(384), -np.zeros(128)])
    ties = np.round(normal(n) * 4) / 4
    return np.stack([
        normal(n) * 0.02, normal(n), rng.standard_t(3, n) * 0.1, rng.random(n), -rng.random(n) * 3 - 1, sparse, holes,
        spike, tiny, equal, zeros, ties,
    ]).astype("<f4")


def load_ggml(path):
    ggml = ctypes.CDLL(path)
    floats = ctypes.POINTER(ctypes.c_float)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, floats, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, floats]
    return ggml


def quantize(ggml, name, x, importance):
    """`ggml_quantize_chunk` of all rows."""
    qtype = GGMLQuantizationType[name]
    block_len, block_bytes = GGML_QUANT_SIZES[qtype]
    out = ctypes.create_string_buffer(x.size // block_len * block_bytes)
    pointer = lambda a: None if a is None else a.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    written = ggml.ggml_quantize_chunk(int(qtype), pointer(x), out, 0, x.shape[0], x.shape[1], pointer(importance))
    assert written == len(out)
    return out.raw


def encode_goldens(rng, ggml):
    x = np.ascontiguousarray(rows(rng))
    importance = (rng.standard_normal(N_PER_ROW) ** 2).astype("<f4")
    importance[[5, 77]] = [0.0, 40.0]
    (DATA / "encode/input.f32").write_bytes(x.tobytes())
    (DATA / "encode/importance.f32").write_bytes(importance.tobytes())
    for name in ENCODED:
        (DATA / f"encode/{name.lower()}.plain").write_bytes(quantize(ggml, name, x, None))
        if name not in ("F16", "BF16", "Q8_0"):
            (DATA / f"encode/{name.lower()}.weighted").write_bytes(quantize(ggml, name, x, importance))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", required=True, help="libggml-base.so of a llama.cpp build")
    args = parser.parse_args()
    for folder in ["decode", "encode"]:
        (DATA / folder).mkdir(parents=True, exist_ok=True)
    decode_goldens(np.random.default_rng(1))
    encode_goldens(np.random.default_rng(2), load_ggml(args.ggml))


if __name__ == "__main__":
    main()
