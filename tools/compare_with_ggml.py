#!/usr/bin/env python3
"""Compare encoders and writer with llama.cpp and with the `gguf` Python package, on more data than the tests keep.

    pip install numpy gguf
    cargo build -p lapidary-gguf --examples
    python tools/compare_with_ggml.py --ggml path/to/libggml-base.so --model model.gguf [--model vocabulary.gguf]

Encoders: random rows and rows of the models' own tensors, with and without importances, must give the bytes of
`ggml_quantize_chunk`. Writer: a copy of each model must hold what the original holds, as the Python package reads
both, and have the bytes that GGML's writer makes of the original.
"""

import argparse
import ctypes
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from gguf import GGUFReader, quants

from make_block_goldens import ENCODED, load_ggml, quantize

EXAMPLES = Path(__file__).resolve().parent.parent / "target/debug/examples"


def data_sets(models, rng, n_rows):
    yield "normal", rng.standard_normal((n_rows, 2048)) * 0.05
    yield "heavy tails", rng.standard_t(2, (n_rows, 1024))
    yield "wide range", rng.standard_normal((n_rows, 512)) * 10.0 ** rng.integers(-12, 4, (n_rows, 512))
    yield "sparse", rng.standard_normal((n_rows, 512)) * (rng.random((n_rows, 512)) < 0.05)
    yield "one sign", rng.random((n_rows, 512)) ** 4
    for model in models:
        tensors = [t for t in GGUFReader(model).tensors if t.shape[0] % 256 == 0 and len(t.shape) > 1]
        for tensor in tensors[:: max(1, len(tensors) // 4)]:
            rows = quants.dequantize(tensor.data[:n_rows], tensor.tensor_type)
            yield f"{Path(model).name}: {tensor.name}", rows


def compare_encoders(ggml, models, n_rows, folder):
    rng = np.random.default_rng(7)
    blocks = different = 0
    seconds = {}
    for label, x in data_sets(models, rng, n_rows):
        x = np.ascontiguousarray(x, "<f4")
        importance = (rng.standard_normal(x.shape[1]) ** 2 + 1e-4).astype("<f4")
        x.tofile(folder / "x")
        importance.tofile(folder / "w")
        for name in ENCODED:
            for weights in [None, importance]:
                command = [EXAMPLES / "encode_rows", name, str(x.shape[1]), folder / "x", folder / "y"]
                command += [] if weights is None else [folder / "w"]
                ours = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                start = time.perf_counter()
                expected = np.frombuffer(quantize(ggml, name, x, weights), np.uint8)
                theirs = time.perf_counter() - start
                total = seconds.setdefault((name, weights is not None), [0, 0, 0])
                total[:] = total[0] + ours, total[1] + theirs, total[2] + x.size
                found = np.fromfile(folder / "y", np.uint8)
                wrong = np.count_nonzero((found != expected).reshape(x.shape[0], -1).any(axis=1))
                blocks += x.shape[0]
                different += wrong
                if wrong:
                    print(f"{label}, {name}, {'weighted' if weights is not None else 'plain'}: {wrong} rows differ")
    print(f"encoders: {blocks} rows compared, {different} differ")
    for (name, weighted), (ours, theirs, n) in seconds.items():
        print(f"  {name}{' weighted' if weighted else ''}: {n / ours / 1e6:.1f} M elements/s, GGML {n / theirs / 1e6:.1f}")
    return different == 0


def ggml_copy(ggml, model, output):
    """The model as GGML's own writer writes it."""
    class Params(ctypes.Structure):
        _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.POINTER(ctypes.c_void_p))]
    context = ctypes.c_void_p()
    ggml.gguf_init_from_file.restype = ctypes.c_void_p
    ggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, Params]
    ggml.gguf_write_to_file.restype = ctypes.c_bool
    ggml.gguf_write_to_file.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_bool]
    ggml.ggml_get_tensor.restype = ctypes.c_void_p
    ggml.ggml_get_tensor.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    ggml.ggml_get_data.restype = ctypes.c_void_p
    ggml.ggml_get_data.argtypes = [ctypes.c_void_p]
    ggml.gguf_set_tensor_data.restype = None
    ggml.gguf_set_tensor_data.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    gguf = ggml.gguf_init_from_file(str(model).encode(), Params(False, ctypes.pointer(context)))
    for tensor in GGUFReader(model).tensors:
        name = tensor.name.encode()
        ggml.gguf_set_tensor_data(gguf, name, ggml.ggml_get_data(ggml.ggml_get_tensor(context, name)))
    assert ggml.gguf_write_to_file(gguf, str(output).encode(), False)


def compare_writer(ggml, model, folder):
    ours, theirs = folder / "ours.gguf", folder / "theirs.gguf"
    subprocess.run([EXAMPLES / "copy_gguf", model, ours], check=True)
    ggml_copy(ggml, model, theirs)
    same_bytes = ours.read_bytes() == theirs.read_bytes()
    a, b = GGUFReader(model), GGUFReader(ours)
    same = [f for f in a.fields if not f.startswith("GGUF.")] == [f for f in b.fields if not f.startswith("GGUF.")]
    for name, field in a.fields.items():
        if not name.startswith("GGUF."):
            same &= name in b.fields and field.contents() == b.fields[name].contents()
    same &= len(a.tensors) == len(b.tensors)
    for x, y in zip(a.tensors, b.tensors):
        same &= (x.name, x.tensor_type, x.shape.tolist()) == (y.name, y.tensor_type, y.shape.tolist())
        same &= np.array_equal(x.data, y.data)
    print(f"writer: {Path(model).name}: read back {'the same' if same else 'DIFFERENT'}, "
          f"bytes {'equal' if same_bytes else 'DIFFERENT from'} GGML's")
    return same and same_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", required=True, help="libggml-base.so of a llama.cpp build")
    parser.add_argument("--model", action="append", default=[], help="GGUF files to copy and to take rows from")
    parser.add_argument("--rows", type=int, default=64, help="rows of each kind; 0 leaves the encoders out")
    args = parser.parse_args()
    ggml = load_ggml(args.ggml)
    with tempfile.TemporaryDirectory() as folder:
        good = [compare_encoders(ggml, args.model, args.rows, Path(folder))] if args.rows else []
        good += [compare_writer(ggml, model, Path(folder)) for model in args.model]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
