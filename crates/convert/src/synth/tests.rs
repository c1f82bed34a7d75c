use lapidary_gguf::{Gguf, block};

use super::*;

fn make(kind: SyntheticKind, file_type: FileType, seed: u64) -> (tempfile::TempDir, Gguf, Report) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let mut options = SyntheticOptions::new(kind, file_type);
    options.layers = Some(1);
    options.seed = seed;
    let report = synthesize(&path, &options, &mut |_| {}).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    (dir, gguf, report)
}

#[test]
fn a_plan_is_what_is_written_and_seeds_decide() {
    let (_dir, gguf, report) = make(SyntheticKind::Gemma3_270M, FileType::Q4_K_M, 1);
    let mut options = SyntheticOptions::new(SyntheticKind::Gemma3_270M, FileType::Q4_K_M);
    options.layers = Some(1);
    let (rows, planned) = plan_synthetic(&options).unwrap();
    assert_eq!((planned.tensors, planned.bytes), (report.tensors, report.bytes));
    for (row, info) in rows.iter().zip(gguf.tensors()) {
        assert_eq!((row.name.as_str(), row.shape.as_slice()), (info.name(), info.shape()));
        assert_eq!(row.ty, info.ty().unwrap().name());
    }
    let embeddings =
        |gguf: &Gguf| gguf.data(gguf.tensor("token_embd.weight").unwrap()).unwrap()[..4096].to_vec();
    let (_a, same, _) = make(SyntheticKind::Gemma3_270M, FileType::Q4_K_M, 1);
    let (_b, other, _) = make(SyntheticKind::Gemma3_270M, FileType::Q4_K_M, 2);
    assert_eq!(embeddings(&gguf), embeddings(&same));
    assert_ne!(embeddings(&gguf), embeddings(&other));
}

#[test]
fn matrices_keep_the_size_of_their_inputs() {
    for file_type in [FileType::Q4_K_M, FileType::Q8_0, FileType::BF16] {
        let (_dir, gguf, _) = make(SyntheticKind::A4B26, file_type, 3);
        for name in ["blk.0.attn_q.weight", "blk.0.ffn_down.weight", "blk.0.ffn_gate_up_exps.weight"] {
            let info = gguf.tensor(name).unwrap();
            let cols = info.shape()[0] as usize;
            let ty = info.ty().unwrap();
            let bytes = gguf.data(info).unwrap();
            let mut values = vec![0.0; 64 * cols];
            block::dequantize(ty, &bytes[..64 * ty.row_bytes(cols).unwrap()], &mut values).unwrap();
            let square: f64 = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / 64.0;
            assert!((0.9..1.1).contains(&square), "{name} of {ty}: rows have norm^2 {square}");
            assert_ne!(values[..cols], values[cols..2 * cols], "{name}: two rows are equal");
        }
    }
}

#[test]
fn cut_models_keep_their_rules() {
    let config = SyntheticKind::E2B.config(Some(17)).unwrap();
    assert_eq!((config.layers.len(), config.shared_kv), (17, 2));
    assert!(SyntheticKind::E2B.config(Some(0)).is_err());
    assert!(SyntheticKind::E2B.config(Some(36)).is_err());
    for kind in SyntheticKind::ALL {
        kind.config(None).unwrap();
        assert_eq!(kind.name().parse::<SyntheticKind>().unwrap(), kind);
    }
}
