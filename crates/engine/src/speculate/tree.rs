//! Trees of drafted tokens.

/// A drafted token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftNode {
    /// The token.
    pub token: u32,
    /// The node it follows; absent: it follows the text.
    pub parent: Option<usize>,
    /// How sure the drafter is that the token comes next, given that its parent did, from 0 to 1.
    pub confidence: f32,
}

/// What may follow a text: tokens, each with the one it follows. Parents stand before their children, and no two children
/// of a node have the same token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftTree {
    nodes: Vec<DraftNode>,
}

impl DraftTree {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// A chain of tokens with their confidences.
    pub fn chain(tokens: impl IntoIterator<Item = (u32, f32)>) -> Self {
        let mut tree = Self::new();
        let mut parent = None;
        for (token, confidence) in tokens {
            parent = Some(tree.push(parent, token, confidence));
        }
        tree
    }

    /// The nodes.
    pub fn nodes(&self) -> &[DraftNode] {
        &self.nodes
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing is drafted.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a token behind `parent` and returns its node. When it is there already, that node takes the larger
    /// confidence.
    ///
    /// # Panics
    /// When `parent` is no node.
    pub fn push(&mut self, parent: Option<usize>, token: u32, confidence: f32) -> usize {
        assert!(parent.is_none_or(|p| p < self.nodes.len()), "a parent stands before its children");
        if let Some(node) = self.child(parent, token) {
            self.nodes[node].confidence = self.nodes[node].confidence.max(confidence);
            return node;
        }
        self.nodes.push(DraftNode { token, parent, confidence });
        self.nodes.len() - 1
    }

    /// The node of `token` behind `parent`.
    pub fn child(&self, parent: Option<usize>, token: u32) -> Option<usize> {
        let first = parent.map_or(0, |p| p + 1);
        let is_it = |node: &DraftNode| node.parent == parent && node.token == token;
        self.nodes.get(first..)?.iter().position(is_it).map(|i| first + i)
    }

    /// The nodes behind `parent`.
    pub fn children(&self, parent: Option<usize>) -> impl Iterator<Item = usize> {
        let behind = move |&i: &usize| self.nodes[i].parent == parent;
        (parent.map_or(0, |p| p + 1)..self.nodes.len()).filter(behind)
    }

    /// How many nodes stand before each node on its path.
    pub fn depths(&self) -> Vec<usize> {
        let mut depths: Vec<usize> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            depths.push(node.parent.map_or(0, |p| depths[p] + 1));
        }
        depths
    }

    /// The tree of the nodes for which `keep` holds and whose parents are kept.
    pub fn filter(&self, keep: impl Fn(usize) -> bool) -> Self {
        let mut kept = Self::new();
        let mut places: Vec<Option<usize>> = Vec::with_capacity(self.nodes.len());
        for (i, node) in self.nodes.iter().enumerate() {
            let parent = node.parent.map(|p| places[p]);
            let place = match parent {
                Some(None) => None,
                _ if !keep(i) => None,
                parent => {
                    kept.nodes.push(DraftNode { parent: parent.flatten(), ..*node });
                    Some(kept.nodes.len() - 1)
                }
            };
            places.push(place);
        }
        kept
    }

    /// The tree without what lies deeper than `depth` tokens or beyond the first `nodes` nodes.
    pub fn limited(&self, depth: usize, nodes: usize) -> Self {
        let depths = self.depths();
        self.filter(|i| depths[i] < depth && i < nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> DraftTree {
        let mut tree = DraftTree::chain([(1, 0.9), (2, 0.8), (3, 0.7)]);
        let other = tree.push(Some(0), 5, 0.1);
        tree.push(Some(other), 2, 0.5);
        tree.push(None, 7, 0.1);
        tree
    }

    #[test]
    fn equal_siblings_are_one_node() {
        let mut tree = tree();
        assert_eq!(tree.push(Some(0), 2, 0.95), 1);
        assert_eq!((tree.len(), tree.nodes()[1].confidence), (6, 0.95));
        assert_eq!(
            (tree.child(None, 7), tree.child(Some(3), 2), tree.child(None, 2)),
            (Some(5), Some(4), None)
        );
        assert_eq!(tree.children(Some(0)).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(tree.depths(), [0, 1, 2, 1, 2, 0]);
    }

    #[test]
    fn filtering_drops_the_descendants_too() {
        let kept = tree().filter(|i| i != 1);
        let tokens: Vec<_> = kept.nodes().iter().map(|n| (n.token, n.parent)).collect();
        assert_eq!(tokens, [(1, None), (5, Some(0)), (2, Some(1)), (7, None)]);
        assert_eq!(tree().limited(2, 5).len(), 3);
    }
}
