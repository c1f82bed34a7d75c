//! Stored bytes are those of the reference codec, on every instruction set.

use super::*;

#[test]
fn codes_and_scales_are_the_reference_codecs_bytes() {
    let formats = [KvFormat::Tq8, KvFormat::Tq6, KvFormat::Tq5, KvFormat::Tq4];
    for format in formats {
        for dim in [16, 32, 64, 96, 128, 160, 256, 512] {
            for isa in Isa::available() {
                for (name, vector) in vectors(dim) {
                    let (block_len, cell) = (8, 11);
                    let spec = KvPoolSpec {
                        layers: 2,
                        kv_heads: 1,
                        head_dim: dim,
                        k_format: format,
                        v_format: format,
                        block_len,
                    };
                    let mut pool = CpuKvPool::new(spec);
                    pool.reserve(2).unwrap();
                    let layout = HeadLayout { heads: 1, kv_heads: 1, head_dim: dim };
                    let qkv = [vec![0.0; dim], vector.clone(), vec![1.0; dim]].concat();
                    pool.store(isa, &qkv, layout, (&[cell], &[0]), 1).unwrap();
                    let mut codes = vec![0; format.code_bytes(dim)];
                    let mut scales = vec![0.0; format.scale_count(dim)];
                    turbo::encode(format, &vector, &mut codes, &mut scales).unwrap();
                    let cell = cell as usize;
                    let range = pool.codes_range(Part::Keys, 1, 0, cell);
                    let stored = &pool.bytes(1).get::<u8>()[range];
                    let what = format!("{name} of {dim} in {format} on {isa}");
                    if dim == 16 {
                        // The second half of the group is padding.
                        let used = |bytes: &[u8]| bytes[..16].iter().map(|b| b & 15).collect::<Vec<_>>();
                        assert_eq!(used(stored), used(&codes), "{what}");
                    } else {
                        assert_eq!(stored, codes, "{what}");
                    }
                    for (i, scale) in scales.iter().enumerate() {
                        let found = pool.scales(Part::Keys, 1, 0, 1, i)[cell % block_len];
                        assert_eq!(
                            found.to_bits(),
                            scale.to_bits(),
                            "{what}, scale {i}: {found:e} {scale:e}"
                        );
                    }
                }
            }
        }
    }
}

fn vectors(dim: usize) -> Vec<(&'static str, Vec<f32>)> {
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let noise: Vec<f32> = (0..dim).map(|_| (0..6).map(|_| next()).sum()).collect();
    let mut one = vec![0.0; dim];
    one[dim / 3] = 4.0;
    vec![
        ("noise", noise.clone()),
        ("huge noise", noise.iter().map(|x| x * 1e36).collect()),
        ("tiny noise", noise.iter().map(|x| x * 1e-20).collect()),
        ("noise on a slope", noise.iter().enumerate().map(|(i, x)| x + i as f32 * 0.1).collect()),
        ("zero", vec![0.0; dim]),
        ("constant", vec![-2.5; dim]),
        ("one-hot", one),
    ]
}

#[test]
fn undefined_vectors_name_their_place() {
    for format in [KvFormat::Tq8, KvFormat::Tq4] {
        let spec = KvPoolSpec {
            layers: 3,
            kv_heads: 1,
            head_dim: 32,
            k_format: KvFormat::F16,
            v_format: format,
            block_len: 4,
        };
        let mut pool = CpuKvPool::new(spec);
        pool.reserve(1).unwrap();
        let layout = HeadLayout { heads: 1, kv_heads: 1, head_dim: 32 };
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for isa in Isa::available() {
                let mut qkv = vec![0.5; 2 * layout.stride()];
                qkv[2 * layout.stride() - 3] = bad;
                let error = pool.store(isa, &qkv, layout, (&[0, 1], &[70, 71]), 2).unwrap_err();
                assert!(
                    matches!(error, BackendError::NotFinite { part: "value", layer: 2, position: 71 }),
                    "{error}"
                );
            }
        }
    }
}
