//! Which part of a draft is worth its rows.

use super::calibration::Calibration;
use super::cost::RowCosts;
use super::tree::DraftTree;

/// How much faster than plain decoding a draft must promise to be before it is checked: estimates err.
const MARGIN: f64 = 1.03;

/// The part of `tree` whose expected tokens a second are most, at most `most` nodes; empty when plain decoding promises
/// more, or nothing is known of its cost. `spent` is the time that drafting took, in seconds.
pub(super) fn worthwhile(
    tree: &DraftTree,
    calibration: &Calibration,
    costs: &RowCosts,
    (most, spent): (usize, f64),
) -> DraftTree {
    let Some(one) = costs.estimate(1) else { return DraftTree::new() };
    let chances = chances(tree, calibration);
    let mut order: Vec<usize> = (0..tree.len()).collect();
    // No child is likelier than its parent and sorting is stable: parents come first.
    order.sort_by(|&a, &b| chances[b].total_cmp(&chances[a]));
    let (mut best, mut best_speed) = (0, MARGIN / one);
    let mut tokens = 1.0;
    for (taken, &node) in order.iter().enumerate().take(most) {
        tokens += f64::from(chances[node]);
        let rows = taken + 2;
        let Some(cost) = costs.estimate(rows) else { break };
        let speed = tokens / (cost + spent);
        if speed > best_speed {
            (best, best_speed) = (taken + 1, speed);
        }
    }
    let mut keep = vec![false; tree.len()];
    order[..best].iter().for_each(|&node| keep[node] = true);
    tree.filter(|node| keep[node])
}

/// The probability that each node, and with it all before it, is the model's choice.
fn chances(tree: &DraftTree, calibration: &Calibration) -> Vec<f32> {
    let alone: Vec<f32> = tree.nodes().iter().map(|n| calibration.probability(n.confidence)).collect();
    let mut chances: Vec<f32> = Vec::with_capacity(alone.len());
    for (node, &chance) in tree.nodes().iter().zip(&alone) {
        chances.push(node.parent.map_or(1.0, |p| chances[p]) * chance);
    }
    chances
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn costs(row: f64) -> RowCosts {
        let mut costs = RowCosts::new();
        (1..=17).for_each(|n| costs.observe(n, Duration::from_secs_f64(1.0 + row * (n - 1) as f64)));
        costs
    }

    fn planned(tree: &DraftTree, row: f64) -> usize {
        worthwhile(tree, &Calibration::default(), &costs(row), (16, 0.0)).len()
    }

    #[test]
    fn rows_are_taken_while_they_pay() {
        let sure = DraftTree::chain((0..16).map(|t| (t, 0.9)));
        assert_eq!(planned(&sure, 0.0), 16);
        // The best n of (1 + 0.9 + .. + 0.9^n) / (1 + n row).
        let speed =
            |n: usize, row: f64| (0..=n).map(|i| 0.9f64.powi(i as i32)).sum::<f64>() / (1.0 + row * n as f64);
        for row in [0.05, 0.2, 0.5, 1.0] {
            let best = (0..=16).max_by(|&a, &b| speed(a, row).total_cmp(&speed(b, row))).unwrap();
            assert_eq!(planned(&sure, row), best, "rows at {row}");
        }
    }

    #[test]
    fn the_likely_branch_is_kept() {
        let mut tree = DraftTree::chain([(1, 0.1), (2, 0.9)]);
        let other = tree.push(None, 3, 0.8);
        tree.push(Some(other), 4, 0.8);
        let kept = worthwhile(&tree, &Calibration::default(), &costs(0.3), (16, 0.0));
        assert_eq!(kept.nodes().iter().map(|n| n.token).collect::<Vec<_>>(), [3, 4]);
        // Drafting that takes longer than it saves is for nothing.
        assert!(worthwhile(&tree, &Calibration::default(), &costs(0.3), (16, 5.0)).is_empty());
        assert!(worthwhile(&tree, &Calibration::default(), &RowCosts::new(), (16, 0.0)).is_empty());
    }
}
