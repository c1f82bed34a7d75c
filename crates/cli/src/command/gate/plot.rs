//! The gate's plot: divergence by position, error by layer.

use lapidary_engine::Config;
use lapidary_engine::quality::{TokenComparison, percentile};

use super::Verdict;
use crate::args::GateArgs;
use crate::svg::{Anchor, Chart, Scale, Stroke, Svg, Text};

const BLUE: &str = "#1d5fa8";
const BAND: &str = "#cfe0f3";
const POINT: &str = "#8fb4dc";
const RED: &str = "#c0392b";
const ORANGE: &str = "#c2700c";

const WIDTH: f64 = 960.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 24.0;
/// Bins of positions over which the divergence is summarised, at most, and values that each should hold.
const BINS: usize = 96;
const BIN_VALUES: usize = 20;
/// Least exponents shown: below them are rounding errors of the measurement itself.
const KLD_FLOOR: i32 = -10;
const COSINE_FLOOR: i32 = -12;

/// Draws a comparison.
pub fn draw(args: &GateArgs, config: &Config, verdict: &Verdict) -> String {
    let mut svg = Svg::new(WIDTH, 810.0);
    heading(&mut svg, args, verdict);
    divergence(&mut svg, verdict);
    layers(&mut svg, config, verdict);
    svg.finish()
}

fn heading(svg: &mut Svg, args: &GateArgs, verdict: &Verdict) {
    let comparison = &verdict.comparison;
    let name = |path: &std::path::Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
    let model = args.run.model.model.as_deref().and_then(name).unwrap_or_else(|| "demo model".to_owned());
    let text = name(&args.file).unwrap_or_else(|| args.file.display().to_string());
    let title = format!("KV cache {} against {}", comparison.candidate, comparison.reference);
    svg.text((LEFT, 38.0), Text::TITLE, &title);
    let (n, context) = (comparison.tokens.len(), args.ctx_size);
    let setting = format!("{model}, {text}: {n} tokens, context {context}");
    svg.text((LEFT, 60.0), Text::LABEL, &setting);
    let figures = format!(
        "mean KLD {:.2e} nat, same greedy choice {:.2} %, perplexity {:+.3} %",
        comparison.kld_mean(),
        100.0 * comparison.same_top1(),
        comparison.delta_percent()
    );
    svg.text((LEFT, 78.0), Text::LABEL, &figures);
    let (color, outcome) = if verdict.missed.is_empty() { (BLUE, "passed") } else { (RED, "missed") };
    let style = Text { color, ..Text::HEADING }.anchored(Anchor::End);
    svg.text((WIDTH - RIGHT, 38.0), style, outcome);
}

/// Values that share a bin of positions.
struct Bin {
    middle: f64,
    low: f64,
    median: f64,
    high: f64,
    /// The values above `high` that are shown one by one.
    outliers: Vec<(f64, f64)>,
}

/// Summarises the divergences by position in the context, over all chunks.
fn bins(tokens: &[TokenComparison], first: usize, last: usize) -> Vec<Bin> {
    let n_bins = (tokens.len() / BIN_VALUES).clamp(1, BINS);
    let width = (last + 1 - first).div_ceil(n_bins).max(1);
    let mut parts: Vec<Vec<&TokenComparison>> = vec![Vec::new(); (last - first) / width + 1];
    tokens.iter().for_each(|t| parts[(t.position - first) / width].push(t));
    let bin = |(i, part): (usize, &Vec<&TokenComparison>)| {
        let values: Vec<f64> = part.iter().map(|t| t.kld).collect();
        let cut = percentile(&values, 0.9);
        let begin = first + i * width;
        Bin {
            middle: (begin + (begin + width - 1).min(last)) as f64 / 2.0,
            low: percentile(&values, 0.1),
            median: percentile(&values, 0.5),
            high: cut,
            outliers: part.iter().filter(|t| t.kld > cut).map(|t| (t.position as f64, t.kld)).collect(),
        }
    };
    parts.iter().enumerate().filter(|(_, part)| !part.is_empty()).map(bin).collect()
}

fn divergence(svg: &mut Svg, verdict: &Verdict) {
    let tokens = &verdict.comparison.tokens;
    let positions = || tokens.iter().map(|t| t.position);
    let (Some(first), Some(last)) = (positions().min(), positions().max()) else { return };
    let bins = bins(tokens, first, last);
    let (mean, limit) = (verdict.comparison.kld_mean(), verdict.thresholds.kld_mean);
    let shown =
        bins.iter().flat_map(|b| [b.low, b.median, b.high].into_iter().chain(b.outliers.iter().map(|o| o.1)));
    let chart = Chart {
        left: LEFT,
        top: 124.0,
        width: WIDTH - LEFT - RIGHT,
        height: 300.0,
        x: Scale::Linear(first as f64, (last as f64).max(first as f64 + 1.0)),
        y: Scale::decades(shown.chain([mean, limit]), KLD_FLOOR),
    };
    chart.frame(svg, "KL divergence", "position in the context", "nat");
    let line = |value: fn(&Bin) -> f64| bins.iter().map(|b| chart.at(b.middle, value(b))).collect::<Vec<_>>();
    svg.band(&line(|b| b.low), &line(|b| b.high), BAND);
    for &(x, y) in bins.iter().flat_map(|b| &b.outliers) {
        svg.dot(chart.at(x, y), 1.5, POINT);
    }
    svg.line(&line(|b| b.median), Stroke { color: BLUE, width: 2.0, dashed: false });
    let across = |y: f64| [chart.at(first as f64, y), chart.at(last as f64, y)];
    svg.line(&across(mean), Stroke { color: ORANGE, width: 1.5, dashed: false });
    svg.line(&across(limit), Stroke { color: RED, width: 1.5, dashed: true });
    let entries = [
        (BLUE, "median"),
        (BAND, "10 to 90 %"),
        (POINT, "above"),
        (ORANGE, "mean"),
        (RED, "limit of the mean"),
    ];
    legend(svg, chart.top - 14.0, &entries);
}

fn layers(svg: &mut Svg, config: &Config, verdict: &Verdict) {
    let errors: Vec<f64> = verdict.comparison.layers.iter().map(|l| 1.0 - l.cosine).collect();
    let limit = 1.0 - verdict.thresholds.cosine;
    let chart = Chart {
        left: LEFT,
        top: 530.0,
        width: WIDTH - LEFT - RIGHT,
        height: 210.0,
        x: Scale::Linear(-0.5, errors.len().max(1) as f64 - 0.5),
        y: Scale::decades(errors.iter().copied().chain([limit]), COSINE_FLOOR),
    };
    chart.frame(svg, "Attention output", "layer", "1 \u{2212} cosine");
    let points: Vec<(f64, f64)> = errors.iter().enumerate().map(|(i, &e)| chart.at(i as f64, e)).collect();
    svg.line(&points, Stroke { color: POINT, width: 1.5, dashed: false });
    for (&point, layer) in points.iter().zip(&config.layers) {
        match layer.window {
            Some(_) => svg.dot(point, 4.0, BLUE),
            None => svg.square(point, 8.5, ORANGE),
        }
    }
    let ends = [chart.at(-0.5, limit), chart.at(errors.len() as f64 - 0.5, limit)];
    svg.line(&ends, Stroke { color: RED, width: 1.5, dashed: true });
    legend(svg, chart.top - 14.0, &[(BLUE, "sliding window"), (ORANGE, "full attention"), (RED, "limit")]);
}

/// Coloured names at the right end of a line, in the order given.
fn legend(svg: &mut Svg, y: f64, entries: &[(&'static str, &str)]) {
    // Widths are estimates, on the generous side: the reader's font is not known.
    let width = |name: &str| 30.0 + 7.0 * name.chars().count() as f64;
    let mut x = WIDTH - RIGHT - entries.iter().map(|(_, name)| width(name)).sum::<f64>() + 10.0;
    for &(color, name) in entries {
        svg.square((x + 5.0, y - 4.0), 10.0, color);
        svg.text((x + 15.0, y), Text::LABEL, name);
        x += width(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(position: usize, kld: f64) -> TokenComparison {
        TokenComparison { position, kld, reference_nll: 1.0, candidate_nll: 1.0, same_greedy: true }
    }

    #[test]
    fn bins_hold_every_position_once() {
        let tokens: Vec<_> = (0..2000).map(|i| token(500 + i % 1000, (i % 7) as f64)).collect();
        let bins = bins(&tokens, 500, 1499);
        assert!(bins.len() <= BINS && bins.windows(2).all(|w| w[0].middle < w[1].middle));
        assert!(bins.iter().all(|b| b.low <= b.median && b.median <= b.high));
        assert!(bins.iter().flat_map(|b| &b.outliers).all(|&(x, _)| (500.0..1500.0).contains(&x)));
    }

    #[test]
    fn few_positions_are_no_trouble() {
        assert_eq!(bins(&[token(2, 0.1)], 2, 2).len(), 1);
        let two = bins(&[token(2, 0.1), token(9, 0.3)], 2, 9);
        assert_eq!(two.len(), 1);
        assert!((two[0].median - 0.2).abs() < 1e-12);
    }
}
