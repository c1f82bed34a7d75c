//! The demo model in the binary: a small trained Gemma 4 that continues stories.

use anyhow::Result;
use lapidary_gguf::Gguf;

#[cfg(feature = "demo-model")]
static MODEL: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-gemma4-moe.gguf"));

/// Opens the demo model.
///
/// # Errors
/// When this binary was built without it.
pub fn model() -> Result<Gguf> {
    #[cfg(feature = "demo-model")]
    {
        eprintln!(
            "no model given: using the built-in demo, a 15-million-parameter Gemma 4 that continues stories"
        );
        Ok(Gguf::from_bytes(lapidary_gguf::SharedBytes::from_static(MODEL), "the demo model")?)
    }
    #[cfg(not(feature = "demo-model"))]
    anyhow::bail!("no model given; name a GGUF file with -m (this binary was built without the demo model)")
}
