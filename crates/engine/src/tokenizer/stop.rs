//! Finding stop strings in text that comes in pieces.

/// What [`StopMatcher::push`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that belongs to no stop string, to be shown now.
    pub text: String,
    /// The stop string that ended the text, as its place in the list given to [`StopMatcher::new`].
    pub stop: Option<usize>,
}

/// Watches a stream of text for stop strings and holds back what may be the start of one.
///
/// The text ends before the stop string that is complete first; if several become complete at the same character,
/// before the longest of them. The result does not depend on how the text is cut into pieces.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// Text not handed out yet.
    held: String,
    found: Option<usize>,
}

/// One stop string and how much of it the text ends with (Knuth, Morris and Pratt's automaton).
#[derive(Clone, Debug)]
struct Stop {
    index: usize,
    bytes: Vec<u8>,
    /// For each length of a matched start of `bytes`: the longest shorter start that it ends with.
    fallback: Vec<usize>,
    matched: usize,
}

impl StopMatcher {
    /// A matcher of `stops`. Empty ones never match.
    pub fn new(stops: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let stops = stops
            .into_iter()
            .enumerate()
            .filter(|(_, stop)| !stop.as_ref().is_empty())
            .map(|(index, stop)| Stop::new(index, stop.as_ref().as_bytes()))
            .collect();
        Self { stops, held: String::new(), found: None }
    }

    /// Takes the next piece of text and returns what is certain by now.
    ///
    /// Once a stop string has been found, everything further is swallowed and the same stop is reported again.
    pub fn push(&mut self, text: &str) -> StopOutput {
        if self.found.is_some() {
            return StopOutput { text: String::new(), stop: self.found };
        }
        let already_seen = self.held.len();
        self.held.push_str(text);
        for (i, &byte) in text.as_bytes().iter().enumerate() {
            if let Some((index, len)) = self.advance(byte) {
                self.found = Some(index);
                let mut text = std::mem::take(&mut self.held);
                text.truncate(already_seen + i + 1 - len);
                return StopOutput { text, stop: self.found };
            }
        }
        let undecided = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - undecided);
        StopOutput { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// The text still held back, when no more is to come.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Takes one byte; the longest stop string that it completes, with its length.
    fn advance(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut longest: Option<(usize, usize)> = None;
        for stop in &mut self.stops {
            if stop.advance(byte) && longest.is_none_or(|(_, len)| len < stop.bytes.len()) {
                longest = Some((stop.index, stop.bytes.len()));
            }
        }
        longest
    }
}

impl Stop {
    fn new(index: usize, bytes: &[u8]) -> Self {
        let mut stop = Self { index, bytes: bytes.to_vec(), fallback: vec![0, 0], matched: 0 };
        // The longest proper start that a start ends with: what the automaton so far makes of the bytes after the
        // first.
        for &byte in &bytes[1..] {
            stop.advance(byte);
            stop.fallback.push(stop.matched);
        }
        stop.matched = 0;
        stop
    }

    /// Takes one byte; whether it completes the stop string.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes.get(self.matched) != Some(&byte) {
            self.matched = self.fallback[self.matched];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: the earliest end, of those the earliest start, of those the first in the list.
    fn find_naively(stops: &[String], text: &str) -> Option<(usize, usize)> {
        let occurrences =
            stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty()).flat_map(|(i, stop)| {
                let starts =
                    (0..=text.len()).filter(move |&at| text.as_bytes()[at..].starts_with(stop.as_bytes()));
                starts.map(move |start| (start + stop.len(), start, i))
            });
        occurrences.min().map(|(_, start, i)| (start, i))
    }

    fn run(stops: &[String], pieces: &[String]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops);
        let mut text = String::new();
        for piece in pieces {
            let output = matcher.push(piece);
            text += &output.text;
            if output.stop.is_some() {
                return (text, output.stop);
            }
        }
        (text + &matcher.finish(), None)
    }

    proptest! {
        #[test]
        fn any_cut_gives_what_the_definition_gives(
            stops in proptest::collection::vec("[abé]{0,5}", 0..5),
            pieces in proptest::collection::vec("[abcé]{0,4}", 0..12),
        ) {
            let whole = pieces.concat();
            let expected = match find_naively(&stops, &whole) {
                Some((start, index)) => (whole[..start].to_owned(), Some(index)),
                None => (whole.clone(), None),
            };
            prop_assert_eq!(run(&stops, &pieces), expected);
        }

        #[test]
        fn text_that_starts_no_stop_is_not_held_back(text in "[a-c]{1,20}") {
            let mut matcher = StopMatcher::new(["xa", "xx"]);
            let output = matcher.push(&text);
            prop_assert_eq!(output.text, text);
        }
    }

    fn push_all(stops: &[&str], pieces: &[&str]) -> Vec<(String, Option<usize>)> {
        let mut matcher = StopMatcher::new(stops);
        pieces.iter().map(|piece| matcher.push(piece)).map(|output| (output.text, output.stop)).collect()
    }

    #[test]
    fn possible_starts_are_held_back_across_pieces() {
        assert_eq!(
            push_all(&["\n\nUser:"], &["one\n", "\nUs", "ing\n\nUser", ": hi", "more"]),
            [
                ("one".into(), None),
                ("".into(), None),
                ("\n\nUsing".into(), None),
                ("".into(), Some(0)),
                ("".into(), Some(0)),
            ]
        );
    }

    #[test]
    fn the_first_complete_stop_wins_even_inside_a_longer_one() {
        assert_eq!(push_all(&["abcd", "bc"], &["xa", "bc"]), [("x".into(), None), ("a".into(), Some(1))]);
    }

    #[test]
    fn of_stops_complete_together_the_longest_wins() {
        assert_eq!(push_all(&["c", "abc", "bc"], &["xabc"]), [("x".into(), Some(1))]);
    }

    #[test]
    fn held_text_comes_out_at_the_end() {
        let mut matcher = StopMatcher::new(["stop"]);
        assert_eq!(matcher.push("so sto"), StopOutput { text: "so ".into(), stop: None });
        assert_eq!(matcher.finish(), "sto");
    }
}
