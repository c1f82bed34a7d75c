//! Values of flags.

use lapidary_convert::FileType;

pub fn file_type(name: &str) -> Result<FileType, String> {
    FileType::from_name(name)
        .ok_or_else(|| format!("no such type; known: {}", FileType::ALL.map(FileType::name).join(" ")))
}

pub fn within(text: &str, range: std::ops::RangeInclusive<f64>) -> Result<f64, String> {
    let value = text.parse::<f64>().map_err(|_| "not a number".to_owned())?;
    // NaN lies in no range.
    if range.contains(&value) {
        Ok(value)
    } else {
        Err(format!("must lie from {} to {}", range.start(), range.end()))
    }
}

pub fn non_negative_f64(text: &str) -> Result<f64, String> {
    within(text, 0.0..=f64::MAX).map_err(|_| "must be a number, not negative".into())
}

pub fn percent(text: &str) -> Result<f64, String> {
    within(text, 0.0..=100.0)
}

pub fn cosine(text: &str) -> Result<f64, String> {
    within(text, -1.0..=1.0)
}

pub fn number(text: &str) -> Result<f32, String> {
    text.parse::<f32>().map_err(|_| "not a number".to_owned())
}

pub fn finite(text: &str) -> Result<f32, String> {
    number(text).and_then(|x| if x.is_finite() { Ok(x) } else { Err("must be finite".into()) })
}

pub fn non_negative(text: &str) -> Result<f32, String> {
    finite(text).and_then(|x| if x >= 0.0 { Ok(x) } else { Err("must not be negative".into()) })
}

pub fn positive(text: &str) -> Result<f32, String> {
    finite(text).and_then(|x| if x > 0.0 { Ok(x) } else { Err("must be above zero".into()) })
}

pub fn fraction(text: &str) -> Result<f32, String> {
    finite(text)
        .and_then(|x| if (0.0..=1.0).contains(&x) { Ok(x) } else { Err("must lie from 0 to 1".into()) })
}

pub fn bias(text: &str) -> Result<(u32, f32), String> {
    let (id, value) = text.split_once('=').ok_or("expected ID=X")?;
    let id = id.parse().map_err(|_| format!("'{id}' is no token id"))?;
    let value = number(value)?;
    if value < f32::INFINITY { Ok((id, value)) } else { Err("the bias must be finite, or -inf".into()) }
}
