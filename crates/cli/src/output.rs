//! What a person reads: tables, sizes, errors.

use std::io::ErrorKind;

/// An error and its causes in one block.
pub fn report(error: &anyhow::Error) -> String {
    let mut text = format!("error: {}", printable(&error.to_string()));
    let mut last = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Transparent wrappers repeat their cause.
        if !last.contains(&cause) {
            text += &format!("\n  because: {}", printable(&cause));
        }
        last = cause;
    }
    text
}

/// Whether the reader of stdout went away, as `head` does.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        // JSON is written through a serialiser, whose errors hide the kind unless asked.
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(ErrorKind::BrokenPipe)
    })
}

/// Bytes in the unit that a person would choose.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A count with its thousands apart.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Text that a terminal shows safely: control characters become escapes.
pub fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// A table whose columns line up; the first row is the heading. Columns of numbers are aligned to the right.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table with these headings; a heading that begins with `>` marks a right-aligned column.
    pub fn new(headings: &[&str]) -> Self {
        let right = headings.iter().map(|h| h.starts_with('>')).collect();
        Self { rows: vec![headings.iter().map(|h| h.trim_start_matches('>').to_owned()).collect()], right }
    }

    /// Appends a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table in Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = String::new();
        for (i, row) in self.rows.iter().enumerate() {
            let cell = |c: usize| row.get(c).map_or_else(String::new, |cell| cell.replace('|', "\\|"));
            text += &line((0..self.right.len()).map(cell).collect());
            if i == 0 {
                text +=
                    &line(self.right.iter().map(|&r| if r { "---:" } else { "---" }.to_owned()).collect());
            }
        }
        text
    }

    /// The table as text, a line a row.
    pub fn render(&self) -> String {
        let columns = self.right.len();
        let cell = |row: &[String], c: usize| row.get(c).cloned().unwrap_or_default();
        let widths: Vec<usize> = (0..columns)
            .map(|c| self.rows.iter().map(|row| cell(row, c).chars().count()).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for (i, row) in self.rows.iter().enumerate() {
            let line: Vec<String> = (0..columns)
                .map(|c| match self.right[c] {
                    true => format!("{:>width$}", cell(row, c), width = widths[c]),
                    false => format!("{:<width$}", cell(row, c), width = widths[c]),
                })
                .collect();
            text += line.join("  ").trim_end();
            text.push('\n');
            if i == 0 {
                text += &widths.iter().map(|&w| "-".repeat(w)).collect::<Vec<_>>().join("  ");
                text.push('\n');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_read_well() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(253_113_024), "241.4 MiB");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(12), "12");
    }

    #[test]
    fn markdown_marks_numbers_and_escapes_bars() {
        let mut table = Table::new(&["name", ">bytes"]);
        table.row(["a|b".into(), "1".into()]);
        assert_eq!(table.markdown(), "| name | bytes |\n| --- | ---: |\n| a\\|b | 1 |\n");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", ">bytes"]);
        table.row(["a".into(), "1".into()]);
        table.row(["longer".into(), "1000".into()]);
        assert_eq!(table.render(), "name    bytes\n------  -----\na           1\nlonger   1000\n");
    }
}
