#!/usr/bin/env python3
"""Gives a GGUF model without a tokenizer one in which every byte is a token, so that tools that only take text can run it.

    add_byte_vocabulary.py IN.gguf OUT.gguf

The random test checkpoints have no tokenizer; llama-perplexity needs one. Needs the gguf package.
"""
import sys

import gguf


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(sys.argv[2], architecture)
    for name, field in reader.fields.items():
        if name.startswith(("GGUF.", "tokenizer.")) or name == "general.architecture":
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=sub)
    vocab = next(int(t.shape[-1]) for t in reader.tensors if t.name == "token_embd.weight")
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    kinds = [3, 3, 3, 2] + [6] * 256
    tokens += [f"[unused{i}]" for i in range(vocab - len(tokens))]
    kinds += [5] * (vocab - len(kinds))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * vocab)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
