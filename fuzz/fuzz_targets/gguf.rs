//! Opens arbitrary bytes as a GGUF file and looks at everything in it. What can be opened can be written again and
//! read back.
//!
//!     cargo +nightly fuzz run gguf -- -max_total_time=180 -max_len=4096 -rss_limit_mb=512

#![no_main]

use lapidary_gguf::{Gguf, GgufWriter, Value, block};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::from_bytes(bytes.to_vec().into(), "fuzz") else { return };
    for (key, value) in gguf.metadata().iter() {
        value.describe();
        let _ = (gguf.metadata().opt_u64(key), gguf.metadata().opt_str(key), gguf.metadata().opt_f32(key));
        if let Value::Array(array) = value {
            let _ = (array.to_i64s(), array.to_f32s(), array.to_bools());
            let _ = array.strings().map(|strings| strings.iter().map(<[u8]>::len).sum::<usize>());
        }
    }
    for tensor in gguf.tensors() {
        if let Ok(data) = gguf.data(tensor) {
            let mut values = vec![0.0; tensor.elements() as usize];
            block::dequantize(tensor.ty().expect("a type with data"), &data, &mut values)
                .expect("sizes that agree");
        }
    }
    write_again(&gguf);
});

fn write_again(gguf: &Gguf) {
    let mut writer = GgufWriter::new();
    if writer.set_all(gguf.metadata()).is_err() {
        return;
    }
    for tensor in gguf.tensors() {
        let Ok(ty) = tensor.ty() else { return };
        if writer.add_tensor(tensor.name(), tensor.shape(), ty).is_err() {
            return;
        }
    }
    // An alignment of megabytes would make large files of small ones.
    if writer.file_bytes() > 1 << 20 {
        return;
    }
    let mut data = writer.begin(Vec::new()).expect("a vector takes all bytes");
    for tensor in gguf.tensors() {
        let bytes = gguf.data(tensor).expect("a readable type");
        data.write_tensor(tensor.name(), &bytes).expect("data of the right length");
    }
    let written = data.finish().expect("all tensors written");
    let again = Gguf::from_bytes(written.into(), "again").expect("a written file can be read");
    assert_eq!(again.tensors().len(), gguf.tensors().len());
    assert_eq!(again.metadata().iter().len(), gguf.metadata().iter().len());
}
