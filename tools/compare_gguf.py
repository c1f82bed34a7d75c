#!/usr/bin/env python3
"""Compares two GGUF files tensor by tensor: types, shapes, bytes; for tensors of the same type whose bytes differ, how
many blocks do and both squared errors against a third file.

    compare_gguf.py OURS THEIRS [ORIGINAL]

Needs the gguf package. Exit status 1 when something differs.
"""
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


def main():
    ours, theirs = (GGUFReader(path) for path in sys.argv[1:3])
    original = {t.name: t for t in GGUFReader(sys.argv[3]).tensors} if len(sys.argv) > 3 else {}
    left, right = ({t.name: t for t in r.tensors} for r in (ours, theirs))
    differing = sorted(left.keys() ^ right.keys())
    for name in differing:
        print(f"only in {'ours' if name in left else 'theirs'}: {name}")
    same = 0
    for name in sorted(left.keys() & right.keys()):
        a, b = left[name], right[name]
        if (a.tensor_type, list(a.shape)) != (b.tensor_type, list(b.shape)):
            print(f"{name}: {a.tensor_type.name} {list(a.shape)} and {b.tensor_type.name} {list(b.shape)}")
            differing.append(name)
        elif a.data.tobytes() != b.data.tobytes():
            bytes_differ = np.mean(a.data.view(np.uint8) != b.data.view(np.uint8))
            line = f"{name}: {a.tensor_type.name}, {100 * bytes_differ:.4f} % of bytes differ"
            if name in original:
                x = dequantize(original[name].data, original[name].tensor_type)
                errors = [np.sum((dequantize(t.data, t.tensor_type) - x) ** 2, dtype=np.float64) for t in (a, b)]
                line += f", squared error {errors[0]:.6g} and {errors[1]:.6g}"
            print(line)
            differing.append(name)
        else:
            same += 1
    keys = [k for k in ours.fields if not k.startswith("GGUF.")], [k for k in theirs.fields if not k.startswith("GGUF.")]
    print(f"{same} tensors are identical, {len(differing)} differ; metadata only in ours: "
          f"{sorted(set(keys[0]) - set(keys[1]))}, only in theirs: {sorted(set(keys[1]) - set(keys[0]))}")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
