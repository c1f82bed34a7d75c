//! A small writer of SVG charts: axes with ticks and labels, lines, bands, points.

use std::fmt::Write;

const INK: &str = "#1f2933";
const FAINT: &str = "#66707c";
const GRID: &str = "#e4e7eb";

/// A drawing under construction; coordinates are pixels from the top left.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// Which end of a text its position names.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// An empty drawing on a white ground.
    pub fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    /// The finished file.
    pub fn finish(self) -> String {
        let Self { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
        )
    }

    fn push(&mut self, element: std::fmt::Arguments) {
        writeln!(self.body, "{element}").expect("strings take everything");
    }

    /// A text; its position is on the base line.
    pub fn text(&mut self, (x, y): (f64, f64), style: Text, text: &str) {
        let anchor = match style.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if style.bold { " font-weight=\"600\"" } else { "" };
        let turn =
            if style.upwards { format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"") } else { String::new() };
        let Text { size, color, .. } = style;
        let text = escape(text);
        self.push(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{color}\" \
             text-anchor=\"{anchor}\"{weight}{turn}>{text}</text>"
        ));
    }

    /// A line through points.
    pub fn line(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        if points.len() < 2 {
            return;
        }
        let Stroke { color, width, dashed } = stroke;
        let dash = if dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let points = coordinates(points.iter().copied());
        self.push(format_args!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" \
             stroke-linejoin=\"round\"{dash}/>"
        ));
    }

    /// The area between two lines that run over the same abscissas.
    pub fn band(&mut self, low: &[(f64, f64)], high: &[(f64, f64)], color: &str) {
        if low.len() < 2 {
            return;
        }
        let points = coordinates(high.iter().copied().chain(low.iter().rev().copied()));
        self.push(format_args!("<polygon points=\"{points}\" fill=\"{color}\"/>"));
    }

    /// A disc.
    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, color: &str) {
        self.push(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{color}\"/>"));
    }

    /// A square about a point.
    pub fn square(&mut self, (x, y): (f64, f64), side: f64, color: &str) {
        let (left, top) = (x - side / 2.0, y - side / 2.0);
        self.push(format_args!(
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{side}\" height=\"{side}\" fill=\"{color}\"/>"
        ));
    }
}

/// How a text looks.
#[derive(Clone, Copy)]
pub struct Text {
    pub size: f64,
    pub color: &'static str,
    pub anchor: Anchor,
    pub bold: bool,
    /// Turned to read upwards.
    pub upwards: bool,
}

impl Text {
    pub const TITLE: Self =
        Self { size: 19.0, color: INK, anchor: Anchor::Start, bold: true, upwards: false };
    pub const HEADING: Self = Self { size: 14.0, ..Self::TITLE };
    pub const LABEL: Self = Self { size: 12.0, color: FAINT, bold: false, ..Self::TITLE };

    pub fn anchored(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }
}

/// How a line looks.
#[derive(Clone, Copy)]
pub struct Stroke {
    pub color: &'static str,
    pub width: f64,
    pub dashed: bool,
}

/// A scale of an axis.
#[derive(Clone, Copy, Debug)]
pub enum Scale {
    /// From the first value to the second.
    Linear(f64, f64),
    /// From one power of ten to another, given by their exponents.
    Log(i32, i32),
}

impl Scale {
    /// A logarithmic scale over two or more whole decades that holds all positive values; `floor` is the least exponent.
    pub fn decades(values: impl IntoIterator<Item = f64>, floor: i32) -> Self {
        let (low, high) = values
            .into_iter()
            .filter(|v| *v > 0.0 && v.is_finite())
            .fold((f64::INFINITY, 0f64), |(low, high), v| (low.min(v), high.max(v)));
        if high == 0.0 {
            return Self::Log(floor, floor + 2);
        }
        let low = (low.log10().floor() as i32).max(floor);
        let high = (high.log10().ceil() as i32).max(low + 1);
        Self::Log(low.min(high - 2), high)
    }

    /// Where a value lies, 0 at the start and 1 at the end; values outside lie on the border.
    fn place(self, value: f64) -> f64 {
        let (value, low, high) = match self {
            Self::Linear(low, high) => (value, low, high),
            Self::Log(low, high) => (value.max(f64::MIN_POSITIVE).log10(), f64::from(low), f64::from(high)),
        };
        ((value - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// Values to mark, with their labels.
    fn ticks(self) -> Vec<(f64, String)> {
        match self {
            Self::Log(low, high) => {
                let step = ((high - low) / 8 + 1) as usize;
                (low..=high).step_by(step).map(|e| (10f64.powi(e), power_of_ten(e))).collect()
            }
            Self::Linear(low, high) => {
                let raw = ((high - low) / 8.0).max(1.0);
                let decade = 10f64.powf(raw.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * decade).into_iter().find(|s| *s >= raw);
                let step = step.unwrap_or(10.0 * decade);
                let first = (low / step).ceil() as i64;
                let last = (high / step).floor() as i64;
                (first..=last).map(|i| i as f64 * step).map(|v| (v, format!("{v}"))).collect()
            }
        }
    }
}

/// `10` with its exponent raised, in Unicode.
fn power_of_ten(exponent: i32) -> String {
    if (0..=2).contains(&exponent) {
        return 10i32.pow(exponent as u32).to_string();
    }
    let digits = exponent.to_string();
    let raised = digits.chars().map(|c| match c {
        '-' => '\u{207b}',
        '1' => '\u{b9}',
        '2' => '\u{b2}',
        '3' => '\u{b3}',
        digit => char::from_u32(0x2070 + digit.to_digit(10).unwrap_or(0)).unwrap_or(digit),
    });
    format!("10{}", raised.collect::<String>())
}

/// A rectangle with two axes.
pub struct Chart {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
    pub x: Scale,
    pub y: Scale,
}

impl Chart {
    /// The pixel of a value.
    pub fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.left + self.width * self.x.place(x), self.top + self.height * (1.0 - self.y.place(y)))
    }

    /// Draws grid, axes, ticks and labels.
    pub fn frame(&self, svg: &mut Svg, title: &str, x_label: &str, y_label: &str) {
        let (right, bottom) = (self.left + self.width, self.top + self.height);
        let grid = Stroke { color: GRID, width: 1.0, dashed: false };
        let axis = Stroke { color: FAINT, width: 1.0, dashed: false };
        let label = Text::LABEL;
        for (value, text) in self.y.ticks() {
            let y = self.top + self.height * (1.0 - self.y.place(value));
            svg.line(&[(self.left, y), (right, y)], grid);
            svg.text((self.left - 8.0, y + 4.0), label.anchored(Anchor::End), &text);
        }
        for (value, text) in self.x.ticks() {
            let x = self.left + self.width * self.x.place(value);
            svg.line(&[(x, bottom), (x, bottom + 5.0)], axis);
            svg.text((x, bottom + 19.0), label.anchored(Anchor::Middle), &text);
        }
        svg.line(&[(self.left, self.top), (self.left, bottom), (right, bottom)], axis);
        svg.text((self.left, self.top - 14.0), Text::HEADING, title);
        let middle = (self.left + self.width / 2.0, bottom + 38.0);
        svg.text(middle, label.anchored(Anchor::Middle), x_label);
        let upwards = Text { upwards: true, ..label.anchored(Anchor::Middle) };
        svg.text((self.left - 52.0, self.top + self.height / 2.0), upwards, y_label);
    }
}

fn coordinates(points: impl Iterator<Item = (f64, f64)>) -> String {
    points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

/// Text as XML 1.0 takes it: markup escaped, characters that XML cannot hold replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_text() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text((1.0, 1.0), Text::LABEL, "<a href=\"x\">&\u{0}\u{1b}</a>\u{fffe}");
        let text = svg.finish();
        let document = roxmltree::Document::parse(&text).unwrap();
        let found = document.descendants().find(|n| n.has_tag_name("text")).unwrap();
        assert_eq!(found.text(), Some("<a href=\"x\">&\u{fffd}\u{fffd}</a>\u{fffd}"));
    }

    #[test]
    fn scales_place_and_mark_values() {
        let log = Scale::decades([0.0, 3e-5, 0.2, f64::INFINITY], -9);
        assert!(matches!(log, Scale::Log(-5, 0)));
        assert!((log.place(1e-5), log.place(1.0), log.place(0.0)) == (0.0, 1.0, 0.0));
        assert!((log.place(10f64.powf(-2.5)) - 0.5).abs() < 1e-12);
        assert_eq!(log.ticks()[0], (1e-5, "10\u{207b}\u{2075}".to_owned()));
        assert!(matches!(Scale::decades([0.0], -9), Scale::Log(-9, -7)));
        assert!(matches!(Scale::decades([1e-20, 1.0], -9), Scale::Log(-9, 0)));
        assert!(matches!(Scale::decades([0.02, 0.03], -9), Scale::Log(-3, -1)));
        let ticks: Vec<f64> = Scale::Linear(256.0, 511.0).ticks().into_iter().map(|t| t.0).collect();
        assert_eq!(ticks, [300.0, 350.0, 400.0, 450.0, 500.0]);
    }

    #[test]
    fn charts_turn_the_ordinate_over() {
        let (x, y) = (Scale::Linear(0.0, 10.0), Scale::Linear(0.0, 1.0));
        let chart = Chart { left: 100.0, top: 50.0, width: 200.0, height: 80.0, x, y };
        assert_eq!(chart.at(5.0, 0.0), (200.0, 130.0));
        assert_eq!(chart.at(10.0, 1.0), (300.0, 50.0));
    }
}
