//! Checking a draft: its rows in a batch, and the walk along the model's own choices.

use super::tree::DraftTree;
use crate::batch::{Batch, Input, Parent, Row, Want};
use crate::kv::SequenceId;
use crate::model::Logits;

/// What the caller made of a token's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The token chosen.
    pub token: u32,
    /// Whether the text goes on behind it.
    pub more: bool,
}

/// Appends the text's `last` token and the draft behind it to `batch`, each with what the choice of its successor `need`s.
/// Row 0 of `sequence` is the last token, row `i + 1` is node `i`. Without a draft the sequence simply grows by a row.
pub fn push_draft(batch: &mut Batch, sequence: SequenceId, last: u32, tree: &DraftTree, need: Want) {
    let first = batch.rows.len();
    let root = if tree.is_empty() { Parent::Previous } else { Parent::Committed };
    batch.rows.push(Row { sequence, input: Input::Token(last), parent: root, want: need });
    for (node, depth) in tree.nodes().iter().zip(tree.depths()) {
        let parent = Parent::Row(node.parent.map_or(first, |p| first + 1 + p));
        batch.rows.push(Row {
            sequence,
            input: Input::Token(node.token),
            parent,
            want: need_after(need, depth + 1),
        });
    }
}

/// What is needed once `tokens` more were chosen: each can lower one logit more (the penalties' doing).
fn need_after(need: Want, tokens: usize) -> Want {
    match need {
        Want::Best(k) => Want::Best(k + tokens),
        other => other,
    }
}

/// Follows the model's choices through the draft: `choose` is asked for the token after row 0, and again for the token
/// after each node that is what it chose, in order, once for every token of the text. Returns the rows on the path, row 0
/// first; as many tokens were chosen. `scores` are the logits by row.
///
/// # Errors
/// Those of `choose`, at once.
pub fn walk<'a, E>(
    tree: &DraftTree,
    scores: impl Fn(usize) -> Logits<'a>,
    mut choose: impl FnMut(Logits<'a>) -> Result<Choice, E>,
) -> Result<Vec<usize>, E> {
    let mut path = vec![0];
    let mut at = None;
    loop {
        let row = at.map_or(0, |node| node + 1);
        let choice = choose(scores(row))?;
        at = tree.child(at, choice.token);
        match at {
            Some(node) if choice.more => path.push(node + 1),
            _ => return Ok(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_follows_the_choices_and_ends_where_they_leave_the_tree() {
        let mut tree = DraftTree::chain([(1, 0.5), (2, 0.5)]);
        tree.push(Some(0), 3, 0.5);
        let values = [0.0];
        // Each choice, and whether the text goes on behind it; the tokens asked for are counted.
        let walked = |choices: &[(u32, bool)]| {
            let mut left = choices.iter();
            let choose = |_: Logits| -> Result<Choice, ()> {
                let &(token, more) = left.next().ok_or(())?;
                Ok(Choice { token, more })
            };
            let path = walk(&tree, |_| Logits::All(&values), choose);
            (path, left.len())
        };
        assert_eq!(walked(&[(7, true), (9, true)]), (Ok(vec![0]), 1));
        assert_eq!(walked(&[(1, true), (3, true), (9, true)]), (Ok(vec![0, 1, 3]), 0));
        assert_eq!(walked(&[(1, true), (2, false), (9, true)]), (Ok(vec![0, 1]), 1));
        assert_eq!(walked(&[(1, true)]), (Err(()), 0));
    }
}
